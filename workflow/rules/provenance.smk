# What made a model's results: versions, commits and hashes, and the same as a Workflow Run RO-Crate.


rule describe_run:
    input:
        records=description.records,
        lock="envs/requirements.lock",
        snakefile="Snakefile",
        code=plan.code("describe"),
    output:
        workflow="results/{model}/Snakefile",
        crate="results/{model}/ro-crate-metadata.json",
        record="results/{model}/provenance.json",
    log:
        "logs/describe_run/{model}.log",
    conda:
        "../../envs/environment.yaml"
    threads: 1
    params:
        spec=plan.spec_of("describe"),
        records=description.names,
    shell:
        "python -m headmaps.steps.describe --spec {params.spec:q} --records {params.records:q} --lock {input.lock:q}"
        " --snakefile {input.snakefile:q} --workflow {output.workflow:q} --crate {output.crate:q}"
        " --record {output.record:q} > {log:q} 2>&1"
