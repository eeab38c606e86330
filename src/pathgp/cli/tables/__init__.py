"""Tables in files as streams of columns: CSV, Parquet and .npy, type inference, and encoding as numbers."""
