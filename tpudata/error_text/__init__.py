"""Error messages: patterns of libraries' messages, and recovery of tpudata's errors that they quote."""
