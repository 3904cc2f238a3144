"""Claims: exclusive rights of runs to write into folders."""
