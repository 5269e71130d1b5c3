"""What stands beside the code: pages, units, workflows, decisions, dashboards."""
