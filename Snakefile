# headmaps: what each attention head of a transformer does, read from its weights alone.
# Run from this folder: `snakemake --cores all`, or `snakemake --cores all figure2`.
import gc
import sys

from snakemake.utils import min_version

min_version("9.19")

# A large plan is millions of small objects and no garbage: looking for some takes a sixth of the planning time.
gc.freeze()
gc.set_threshold(50_000, 20, 100)

sys.path.insert(0, "workflow")

from headmaps.cluster import LAST_WORDS, check_cluster
from headmaps.config import MODEL_WILDCARD, checked_config, config_file
from headmaps.contrasts import contrasts
from headmaps.description import Description
from headmaps.drawings import drawings
from headmaps.plan import checked_plan, shell_prefix
from headmaps.replication import Replication
from headmaps.resources import CLUSTER_RULES, Needs
from headmaps.run_lock import hold_or_exit
from headmaps.states import StatesOf


configfile: config_file("config/config.yaml")


plan = checked_plan(checked_config(config, workflow.configfiles))
replication = Replication(plan)
description = Description(plan)
submits = (
    workflow.resource_settings.nodes is not None
)  # --jobs, which an executor needs
needs = Needs(plan, asked=submits or "mem_mb" in workflow.global_resources)
deploys_environments = bool(workflow.deployment_settings.deployment_method)

# A few downloads at a time, whatever --cores says; `--resources download=N` says otherwise.
if "download" not in workflow.global_resources:
    workflow.register_resource("download", 3)

shell.executable("bash")
shell.prefix(
    shell_prefix(exact=plan.config.exact, own_python=not deploys_environments)
    + LAST_WORDS
)


onstart:
    hold_or_exit()
    check_cluster(workflow)
    # Snakemake looks again a second after every look whether its limit of jobs a second allows more, for ever: after a
    # thousand jobs that is a thousand looks a second. How many run at a time is what --cores and --jobs limit.
    workflow.scheduler.job_rate_limiter = None


wildcard_constraints:
    model=MODEL_WILDCARD,
    layer_norm="raw|gain|gain_and_center|gain_and_center_write",
    matrix="value|qk|qk_nope|qk_rope",
    kind="spectrum|shuffle|rows|internal|unpaired",
    layer=r"\d+",


rule all:
    default_target: True
    input:
        plan.tables(),
        plan.figure_files(),
        plan.rotaries(),
        plan.compositions(),
        plan.treatments(),
        plan.comparisons(),
        plan.atlases(),
        replication.verdicts,
        description.targets,


# The stages, in the order data flows.
include: "workflow/rules/checkpoint.smk"
include: "workflow/rules/heads.smk"
include: "workflow/rules/decomposition.smk"
include: "workflow/rules/baselines.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/rotary.smk"
include: "workflow/rules/composition.smk"
include: "workflow/rules/comparison.smk"
include: "workflow/rules/atlas.smk"
include: "workflow/rules/published.smk"
include: "workflow/rules/provenance.smk"
include: "workflow/rules/verify.smk"
# One target per product, over every configured model.
include: "workflow/rules/targets.smk"
# What a cluster gets; everything else stays where snakemake runs.
include: "workflow/rules/placement.smk"
