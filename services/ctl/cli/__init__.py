"""Names, arguments and help texts of the commands. Nothing heavy is imported here, so that help appears at once."""
