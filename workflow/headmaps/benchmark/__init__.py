"""Speed against what one would otherwise use, measured in one run and one thread (`headmaps benchmark`)."""
