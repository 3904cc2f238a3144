"""Object stores of all kinds: the proof of their answers, retries, and reading."""
