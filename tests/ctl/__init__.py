"""The command line for tests: run as a process, beside three services that answer what the test wants."""
