"""`libra costs validate`: forecasts against measurements. Reads parquet with pyarrow; nothing else in `costs` imports this."""
