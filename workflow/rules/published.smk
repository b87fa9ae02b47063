# Our numbers against the published ones, for models that name some (`published:`), and the verdict.


localrules:
    published,


rule compare_published:
    input:
        geometry="results/{model}/heads/geometry.json",
        source="results/{model}/checkpoint/source.json",
        tables=replication.tables("tables.json"),
        heads=ancient(replication.tables("heads.csv")),
        records=replication.decompositions(".json"),
        decompositions=ancient(replication.decompositions(".npz")),
        reference=replication.reference,
        code=plan.code("published"),
    output:
        table="results/{model}/published/published.csv",
        figures=report(
            replication.figures(),
            caption="../report/comparison.rst",
            category="Published numbers",
            subcategory="{model}",
        ),
        record="results/{model}/published/verdict.json",
    log:
        "logs/compare_published/{model}.log",
    wildcard_constraints:
        model=replication.pattern,
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("published"),
    shell:
        "python -m headmaps.steps.published --spec {params.spec:q} --geometry {input.geometry:q}"
        " --source {input.source:q} --tables {input.heads:q} --decompositions {input.decompositions:q}"
        " --records {input.records:q} {input.tables:q} --reference {input.reference:q}"
        " --table {output.table:q} --figures {output.figures:q} --record {output.record:q} > {log:q} 2>&1"


# Says which treatment reproduces the article; fails if none does.
rule published:
    input:
        verdicts=replication.verdicts,
    log:
        "logs/published.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    shell:
        "python -m headmaps.steps.verdict --spec '{{}}' --verdicts {input.verdicts:q} 2>&1 | tee {log:q}"
