"""Many arrays one after the other in one."""
