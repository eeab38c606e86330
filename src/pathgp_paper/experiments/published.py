"""Numbers of the paper's tables as printed: mean and standard error over splits."""

DATASETS = ("pol", "elevators", "bike", "protein", "keggdirected", "3droad", "song", "buzz", "houseelectric")

SAMPLE_RATES = {"song": 1e-3, "houseelectric": 1e-3, "buzz": 1e-4}
"""SGD's learning rates for samples, where they differ from 0.1."""

Entry = tuple[float, float]
Rows = dict[str, dict[str, Entry]]


def _rows(names: tuple[str, ...], **lines: str) -> Rows:
    """Parse lines such as "0.13±0.00 0.38±0.00", with one entry per name."""
    entry = lambda text: (float(text.split("±")[0]), float(text.split("±")[1]))
    return {row: dict(zip(names, map(entry, line.split()), strict=True)) for row, line in lines.items()}


def _splits(**lines: str) -> dict[str, list[float]]:
    return {name: [float(value) for value in line.split()] for name, line in lines.items()}


REGRESSION: dict[str, Rows] = {
    "rmse": _rows(
        DATASETS,
        SGD="0.13±0.00 0.38±0.00 0.11±0.00 0.51±0.00 0.12±0.00 0.11±0.00 0.80±0.00 0.42±0.01 0.09±0.00",
        CG="0.08±0.00 0.35±0.00 0.04±0.00 0.50±0.00 0.08±0.00 0.15±0.01 0.85±0.03 1.41±0.08 0.87±0.14",
        SVGP="0.10±0.00 0.37±0.00 0.07±0.00 0.57±0.00 0.09±0.00 0.49±0.01 0.81±0.00 0.33±0.00 0.11±0.01",
    ),
    "low_noise_rmse": _rows(
        DATASETS,
        SGD="0.13±0.00 0.38±0.00 0.11±0.00 0.51±0.00 0.12±0.00 0.11±0.00 0.80±0.00 0.42±0.01 0.09±0.00",
        CG="0.16±0.01 0.68±0.09 0.05±0.01 3.03±0.23 9.79±1.06 0.34±0.02 0.83±0.02 5.66±1.14 0.93±0.19",
    ),
    "minutes": _rows(
        DATASETS,
        SGD="3.51±0.01 3.51±0.01 5.70±0.02 7.10±0.01 15.2±0.02 27.6±11.4 220±14.5 347±61.5 162±54.3",
        CG="2.18±0.32 1.72±0.60 2.81±0.22 9.07±1.68 12.5±1.99 85.2±36.0 195±2.31 351±48.3 157±0.41",
        SVGP="21.2±0.27 21.3±0.12 20.5±0.02 20.8±0.04 20.8±0.05 21.0±0.12 24.7±0.05 25.6±0.05 20.0±0.03",
    ),
    "nll": _rows(
        DATASETS,
        SGD="-0.70±0.02 0.47±0.00 -0.48±0.08 0.64±0.01 -0.62±0.07 -0.60±0.00 1.21±0.00 0.83±0.07 -1.09±0.04",
        CG="-1.17±0.01 0.38±0.00 -2.62±0.06 0.62±0.01 -0.92±0.10 16.27±0.45 1.36±0.07 2.38±0.08 2.07±0.58",
        SVGP="-0.71±0.01 0.43±0.00 -1.27±0.02 0.86±0.01 -0.70±0.02 0.67±0.02 1.22±0.00 0.25±0.04 -0.89±0.10",
    ),
}
"""Table 1."""

BY_SPLIT: dict[str, dict[str, dict[str, list[float]]]] = {
    "rmse": {
        "SGD": _splits(
            pol="0.1360 0.1319 0.1365 0.1180 0.1271",
            elevators="0.3858 0.3889 0.3913 0.3829 0.3702",
            bike="0.1093 0.1079 0.1049 0.1046 0.1000",
            protein="0.4950 0.5020 0.5252 0.5080 0.4976",
            keggdirected="0.1075 0.1088 0.1118 0.1309 0.1192",
        ),
        "CG": _splits(
            pol="0.0837 0.0769 0.0877 0.0729 0.0823",
            elevators="0.3566 0.3480 0.3605 0.3499 0.3450",
            bike="0.0441 0.0490 0.0341 0.0310 0.0251",
            protein="0.4937 0.4978 0.5222 0.5063 0.4970",
            keggdirected="0.0880 0.0790 0.0891 0.0774 0.0884",
        ),
    },
    "low_noise_rmse": {
        "SGD": _splits(
            pol="0.1360 0.1319 0.1364 0.1179 0.1270",
            elevators="0.3854 0.3885 0.3912 0.3828 0.3701",
            bike="0.1093 0.1079 0.1049 0.1046 0.1000",
            protein="0.4949 0.5018 0.5252 0.5078 0.4975",
            keggdirected="0.1075 0.1088 0.1118 0.1309 0.1192",
        ),
        "CG": _splits(
            pol="0.1567 0.1760 0.1741 0.1254 0.1659",
            elevators="0.6241 0.5187 0.8748 0.9315 0.4524",
            bike="0.0656 0.0547 0.0429 0.0309 0.0334",
            protein="2.9328 3.1370 2.4978 3.9525 2.6272",
            keggdirected="11.6651 13.3822 8.6801 8.3058 6.9338",
        ),
    },
    "nll": {
        "SGD": _splits(
            pol="-0.6647 -0.6785 -0.6706 -0.7110 -0.7583",
            elevators="0.4795 0.4771 0.4787 0.4775 0.4555",
            bike="-0.3161 -0.7174 -0.2841 -0.6840 -0.3897",
            protein="0.6168 0.6666 0.6702 0.6467 0.6229",
            keggdirected="-0.4513 -0.7695 -0.3975 -0.7295 -0.7432",
        ),
        "CG": _splits(
            pol="-1.1836 -1.1580 -1.1498 -1.1689 -1.1952",
            elevators="0.3947 0.3674 0.3872 0.3772 0.3692",
            bike="-2.6718 -2.6405 -2.3923 -2.7337 -2.7131",
            protein="0.6513 0.6311 0.6442 0.6015 0.5660",
            keggdirected="-0.6904 -1.0998 -0.6125 -1.1544 -1.0240",
        ),
    },
}
"""The authors' runs for table 1, by split. CG is the better of the plain and the preconditioned variant."""

SUBSET: dict[str, Rows] = {
    "rmse": {
        **_rows(
            DATASETS[:5],
            **{
                "5%": "0.20±0.01 0.44±0.00 0.18±0.01 0.71±0.01 0.11±0.00",
                "10%": "0.16±0.00 0.41±0.01 0.13±0.00 0.66±0.00 0.11±0.00",
            },
        ),
        **_rows(
            DATASETS[5:],
            **{
                "25000": "0.23±0.00 0.82±0.00 0.33±0.00 0.06±0.01",
                "50000": "0.16±0.00 0.81±0.00 0.32±0.00 0.06±0.00",
            },
        ),
    },
    "nll": {
        **_rows(
            DATASETS[:5],
            **{
                "5%": "-0.43±0.02 0.57±0.01 -0.61±0.09 0.99±0.01 -0.76±0.10",
                "10%": "-0.66±0.02 0.51±0.01 -1.28±0.07 0.91±0.01 -0.82±0.09",
            },
        ),
        **_rows(
            DATASETS[5:],
            **{
                "25000": "-0.42±0.01 1.22±0.00 0.30±0.06 -0.53±0.33",
                "50000": "-0.78±0.01 1.20±0.00 0.26±0.06 -0.49±0.39",
            },
        ),
    },
}
"""The subset-of-data tables of appendix B: shares of the smaller sets, numbers of rows of the larger ones."""

INDUCING = {
    218_782: {"rmse": (0.08, 0.00), "minutes": (16.7, 0.54), "nll": (-1.10, 0.05)},
    431_489: {"rmse": (0.08, 0.00), "minutes": (24.6, 5.40), "nll": (-1.11, 0.04)},
    1_099_206: {"rmse": (0.08, 0.01), "minutes": (49.6, 10.2), "nll": (-1.13, 0.04)},
    1_844_352: {"rmse": (0.09, 0.00), "minutes": (162.0, 54.3), "nll": (-1.09, 0.04)},
}
"""Results on houseelectric by number of inducing points. The last entry is SGD on all rows."""


def text(entry: Entry | None) -> str:
    """Return the entry as printed in the paper, or a dash if there is none."""
    return "—" if entry is None else f"{entry[0]:.2f} ± {entry[1]:.2f}"
