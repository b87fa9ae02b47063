"""The static figures: the five of the article "Attention Matrix Plots", and ours beside them."""
