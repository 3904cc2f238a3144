"""Values of the scratch graph, computed on real data and variables."""
