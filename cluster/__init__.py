"""Ray actors, the train and audit jobs, and the command line."""
