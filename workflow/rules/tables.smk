# heads.csv, a row per head and matrix, and vectors.parquet, a row per singular pair.


rule make_tables:
    input:
        records=plan.input_decompositions(".json"),
        decompositions=ancient(plan.input_decompositions(".npz")),
        baseline_records=plan.input_baselines(".json"),
        baselines=ancient(plan.input_baselines(".npz")),
        geometry="results/{model}/heads/geometry.json",
        code=plan.code("tables"),
    output:
        heads=report(
            "results/{model}/{layer_norm}/tables/heads.csv",
            caption="../report/table.rst",
            category="Tables",
            subcategory="{model}",
            labels={"table": "heads", "layer norm": "{layer_norm}"},
        ),
        vectors="results/{model}/{layer_norm}/tables/vectors.parquet",
        record="results/{model}/{layer_norm}/tables/tables.json",
    log:
        "logs/make_tables/{model}/{layer_norm}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("tables"),
    shell:
        "python -m headmaps.steps.tables --spec {params.spec:q} --geometry {input.geometry:q}"
        " --decompositions {input.decompositions:q} --baselines {input.baselines:q}"
        " --records {input.records:q} {input.baseline_records:q}"
        " --heads-csv {output.heads:q} --vectors {output.vectors:q} --record {output.record:q} > {log:q} 2>&1"
