"""The training side: pinned operators, model, data, the step and its recorder."""
