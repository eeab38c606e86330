"""The command `pathgp`."""

import argparse
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version

from pathgp.cli.common import Interrupted, data_dir, one_line, print_message

COMMANDS = {
    "demo": "run an example on generated data: fit, predict and plot",
    "fit": "fit a model to a table",
    "predict": "predict every row of a table, in constant memory",
    "sample": "evaluate posterior samples at the rows of a table",
    "suggest": "suggest the next points to evaluate, from a table of results",
    "evaluate": "score a model on rows with known targets",
    "info": "describe a model and how it was fitted",
    "plot": "plot a model or the quality of its predictions",
    "data": "list the data sets",
    "experiment": "reproduce the tables and figures of the paper",
    "bench": "measure speed, memory and accuracy, compared with other libraries",
}
"""Each command is a module of this package with `add_to(commands)`, imported only if it is called: importing JAX would
delay the help.
"""

EXTRAS = ("pyarrow", "matplotlib")
"""Packages that some commands need and the library does not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; bad input prints one line on stderr and returns 2."""
    code = 0
    try:
        try:
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            print(end="", flush=True)  # flush here: at exit, Python would report a closed pipe as an error
    except BrokenPipeError:  # the reader of stdout, for instance `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run(words: Sequence[str]) -> int:
    command = parsed(words)
    try:
        with _warnings_as_sentences(), _termination_as_exit(), data_dir(getattr(command, "data_dir", None)):
            return command.run(command) or 0
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        package = str(error.name).split(".")[0]
        if package not in EXTRAS:
            raise
        print_message(f"{package} is not installed: pip install {package}.")
    except ConnectionError as error:  # at exit JAX would wait for the processes that are gone
        print_message(one_line(error))
        os._exit(2)
    except (ValueError, OSError, ArithmeticError) as error:
        print_message(one_line(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):  # JAX has no class for it
            raise
        print_message("not enough memory: reduce the number of samples, rows or columns.")
    except KeyboardInterrupt as stop:
        kept = str(stop) if isinstance(stop, Interrupted) else "nothing was written; existing files are unchanged."
        print_message(f"stopped: {kept}")
        return 130
    return 2


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line, with the function of the command as `run`."""
    parser, called = _parsers(words)
    command, unknown = parser.parse_known_args(words)
    if unknown:  # reported by the command's own parser, which shows its usage
        options = [option for action in called._actions for option in action.option_strings]
        near = get_close_matches(unknown[0], options, 1)
        called.error(f"unrecognized arguments: {' '.join(unknown)}" + (f" (did you mean {near[0]}?)" if near else ""))
    return command


def _parsers(words: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser, and that of the called command with all its options; others have their names only."""
    parser = argparse.ArgumentParser(
        prog="pathgp",
        description="Gaussian process regression with posterior function samples, for up to millions of rows.",
        epilog="Start with `pathgp demo`. `pathgp COMMAND --help` shows the options and examples of a command.",
    )
    parser.add_argument("--version", action="version", version=f"pathgp {version('pathgp')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    called = next((word for word in words if not word.startswith("-")), "")
    for name, purpose in COMMANDS.items():
        if name == called:
            import_module(f"pathgp.cli.{name}").add_to(commands)
        else:
            commands.add_parser(name, help=purpose)
    return parser, commands.choices.get(called, parser)


@contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print_message(one_line(message))
        yield


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that temporary files are deleted."""
    # Python lets only the main thread set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {
        number: signal.signal(number, lambda number, _: sys.exit(128 + number))
        for number in stops
        if signal.getsignal(number) != signal.SIG_IGN  # nohup ignores SIGHUP
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
