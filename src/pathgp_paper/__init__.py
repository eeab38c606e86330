"""Experiments and data sets of the paper, and comparisons with other libraries: `pathgp experiment | bench | data`."""
