# The interactive page of a model.
