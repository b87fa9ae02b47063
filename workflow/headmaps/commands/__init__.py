"""The subcommands of `headmaps`: each module has `add_arguments(parser)` and `run(arguments) -> exit status`."""
