"""Pages whose commands are typed on a host."""
