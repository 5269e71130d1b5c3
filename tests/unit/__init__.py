"""One module or room in memory: no socket, no process, no sleep. The folders are those of services/."""
