# Where rules run under a cluster's executor: the numerics are submitted; what is short, draws, or needs the network stays
# with Snakemake. Without an executor this changes nothing.
workflow.localrules(
    *(rule.name for rule in workflow.rules if rule.name not in CLUSTER_RULES)
)
