"""What can go wrong: faults as rows of tables with their acts, cut connections, and peers that say anything."""
