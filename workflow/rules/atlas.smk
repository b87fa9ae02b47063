# The interactive page of each model, and the one that links them.


rule make_atlas:
    input:
        geometry="results/{model}/heads/geometry.json",
        source="results/{model}/checkpoint/source.json",
        tables=plan.input_tables("tables.json"),
        heads=ancient(plan.input_tables("heads.csv")),
        vectors=ancient(plan.input_tables("vectors.parquet")),
        records=plan.input_all_decompositions(".json"),
        decompositions=ancient(plan.input_all_decompositions(".npz")),
        states=StatesOf(plan).files,
        head_records=StatesOf(plan).records,
        head_arrays=ancient(StatesOf(plan).arrays),
        code=plan.code("atlas"),
    output:
        page=report(
            "results/{model}/atlas.html",
            caption="../report/atlas.rst",
            category="Atlas",
            labels={"model": "{model}"},
        ),
        record="results/{model}/atlas.json",
    log:
        "logs/make_atlas/{model}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("atlas"),
        heads=StatesOf(plan).folders,
    shell:
        "python -m headmaps.steps.atlas --spec {params.spec:q} --geometry {input.geometry:q} --source {input.source:q}"
        " --heads-csv {input.heads:q} --vectors {input.vectors:q} --decompositions {input.decompositions:q}"
        " --states {input.states:q} --heads {params.heads:q} --records {input.records:q} {input.tables:q}"
        " --output {output.page:q} --record {output.record:q} > {log:q} 2>&1"


rule index_atlases:
    input:
        geometries=[plan.path(model, "heads/geometry.json") for model in plan.models],
        records=[
            plan.path(model, plan.config.layer_norm[0], "tables/tables.json")
            for model in plan.models
        ],
        heads=ancient(
            [
                plan.path(model, plan.config.layer_norm[0], "tables/heads.csv")
                for model in plan.models
            ]
        ),
        code=plan.code("atlas_index"),
    output:
        page="results/atlas.html",
        record="results/atlas.json",
    log:
        "logs/index_atlases.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("atlas_index"),
    shell:
        "python -m headmaps.steps.atlas_index --spec {params.spec:q} --geometries {input.geometries:q}"
        " --heads-csv {input.heads:q} --records {input.records:q}"
        " --output {output.page:q} --record {output.record:q} > {log:q} 2>&1"
