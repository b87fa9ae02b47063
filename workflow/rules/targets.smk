# `snakemake tables`, `snakemake figure2`: one name per product, over every configured model.


rule checkpoints:
    input:
        plan.checkpoints(),


rule heads:
    input:
        plan.heads(),


rule decompositions:
    input:
        plan.decompositions(),


rule baselines:
    input:
        plan.baselines(),


rule tables:
    input:
        plan.tables(),


rule figures:
    input:
        plan.figure_files(),


rule atlas:
    input:
        plan.atlases(),


rule comparisons:
    input:
        plan.treatments(),
        plan.comparisons(),


for figure in plan.figure_names():

    rule:
        name:
            figure
        input:
            plan.figure_files(figure),
