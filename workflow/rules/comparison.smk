# Side by side: the treatments of one model, several models, the revisions of one, or a model and its fine-tuned child.


for matrices, model_pattern in plan.matrix_groups():

    rule:
        name:
            f"compare_treatments_{'_'.join(matrices)}"
        input:
            geometry="results/{model}/heads/geometry.json",
            source="results/{model}/checkpoint/source.json",
            tables=plan.input_tables("heads.csv"),
            code=plan.code("treatments"),
        output:
            table="results/{model}/treatments/treatments.csv",
            figures=report(
                expand(
                    "results/{{model}}/treatments/{matrix}.{format}",
                    matrix=matrices,
                    format=plan.config.figures.formats,
                ),
                caption="../report/comparison.rst",
                category="Layer norm",
                subcategory="{model}",
            ),
            record="results/{model}/treatments/treatments.json",
        log:
            "logs/compare_treatments/{model}.log",
        wildcard_constraints:
            model=model_pattern,
        conda:
            "../../envs/environment.yaml"
        threads: 1
        params:
            spec=plan.spec_of("treatments"),
        shell:
            "python -m headmaps.steps.treatments --spec {params.spec:q} --geometry {input.geometry:q}"
            " --source {input.source:q} --tables {input.tables:q}"
            " --table {output.table:q} --figures {output.figures:q} --record {output.record:q} > {log:q} 2>&1"


for side_by_side in contrasts(plan):

    rule:
        name:
            side_by_side.rule
        input:
            geometries=side_by_side.geometries,
            tables=side_by_side.tables,
            records=side_by_side.records,
            arrays=ancient(side_by_side.arrays),
            code=plan.code("comparison"),
        output:
            tables=report(
                side_by_side.output_tables,
                caption="../report/comparison.rst",
                category="Comparisons",
                subcategory=side_by_side.name,
                labels={"table": "{layer_norm}"},
            ),
            figures=report(
                side_by_side.figures,
                caption="../report/comparison.rst",
                category="Comparisons",
                subcategory=side_by_side.name,
                labels={"figure": "{layer_norm}"},
            ),
            record=side_by_side.record,
        log:
            side_by_side.log,
        conda:
            "../../envs/environment.yaml"
        threads: 1
        params:
            spec=side_by_side.spec,
            first=side_by_side.first,
            second=side_by_side.second,
        shell:
            "python -m headmaps.steps.comparison --spec {params.spec:q} --geometries {input.geometries:q}"
            " --tables {input.tables:q} --records {input.records:q} --first {params.first:q} --second {params.second:q}"
            " --outputs {output.tables:q} --figures {output.figures:q} --record {output.record:q} > {log:q} 2>&1"
