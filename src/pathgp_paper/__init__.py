"""The paper's experiments, its data sets, and benchmarks beside other libraries: `pathgp experiment | bench | data`."""
