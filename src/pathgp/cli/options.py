"""The options of `pathgp fit` as a checked value, and the part of this process in a job."""

import argparse
import dataclasses
import pathlib

from pathgp.cli.common import check_out, check_seed, print_message


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `pathgp fit`, as `add_to` describes them."""

    file: pathlib.Path
    target: str
    out: pathlib.Path
    force: bool
    columns: list[str] | None
    drop: list[str]
    one_hot: list[str] | None
    impute: bool
    skip_missing: bool
    test_share: float
    kernel: str
    noise: float | None
    solver: str
    points: int | None
    num_samples: int
    max_seconds: float | None
    memory: float | None
    seed: int
    checkpoint: pathlib.Path | None
    checkpoint_seconds: float
    resume: bool
    devices: int | None
    coordinator: str | None
    process_id: int | None
    num_processes: int | None
    json: bool

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Options":
        """Return the options given; raise `ValueError` or `OSError` for one that is invalid whatever the table."""
        options = cls(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(cls)})
        check_out(options.out, options.force)
        options.check()
        return options

    def check(self) -> None:
        """Raise `ValueError` for an option that is invalid whatever the table."""
        from pathgp._checks import require_at_least
        from pathgp.estimator.registry import KERNELS, SOLVERS, look_up

        if not 0 <= self.test_share < 1:
            raise ValueError(f"--test-share must be at least 0 and below 1, but it is {self.test_share}.")
        require_at_least(self.num_samples, 1, "--num-samples")
        require_at_least(self.max_seconds or 0, 0, "--max-seconds")
        require_at_least(1 if self.devices is None else self.devices, 1, "--devices")
        require_at_least(1 if self.points is None else self.points, 1, "--points")
        look_up(KERNELS, self.kernel, "--kernel")
        look_up(SOLVERS, self.solver, "--solver")
        check_seed(self.seed)
        if self.noise is not None and not 0 < self.noise < float("inf"):
            raise ValueError(f"--noise must be positive and finite, but it is {self.noise}.")
        if self.memory is not None and not self.memory > 0:
            raise ValueError(f"--memory must be positive, but it is {self.memory}.")
        if self.points is not None and self.solver != "inducing":
            raise ValueError(f"--points requires --solver inducing, but --solver is {self.solver}.")
        if self.resume and self.checkpoint is None:
            raise ValueError("--resume requires --checkpoint DIR, the directory to resume from.")


@dataclasses.dataclass(frozen=True)
class Job:
    """The part of this process in the job: whether it prints and writes for all, and its number of devices."""

    speaks: bool
    devices: int | None

    def tell(self, sentence: str) -> None:
        """Print a line on stderr, in one process of the job."""
        if self.speaks:
            print_message(sentence)
