"""Datasets as tables: Arrow, pandas, Parquet, SQL, a summary."""
