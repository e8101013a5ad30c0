"""What a run leaves behind: its folder, metrics, trace and MLflow run."""
