"""Values that hooks and summaries fetch from the scratch graph, computed on real data and variables."""
