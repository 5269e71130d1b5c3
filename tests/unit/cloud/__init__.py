"""The routes of a cloud as values: the plan, and the writer over a cloud that a test plays."""
