-- The one definition of the result store. Raw events are kept; every metric
-- is a view over them. All times of day are UTC.

CREATE TABLE meta (
    key VARCHAR PRIMARY KEY,
    value VARCHAR NOT NULL
);
COMMENT ON TABLE meta IS 'What this file is: schema_version, and the suite that wrote it';
COMMENT ON COLUMN meta.key IS 'Name of the fact';
COMMENT ON COLUMN meta.value IS 'The fact';

CREATE TABLE campaign (
    campaign_id VARCHAR PRIMARY KEY,
    series_id VARCHAR NOT NULL,
    plan VARCHAR NOT NULL,
    plan_key VARCHAR NOT NULL,
    method_version INTEGER NOT NULL,
    engine VARCHAR NOT NULL,
    started_at TIMESTAMP NOT NULL,
    ended_at TIMESTAMP,
    status VARCHAR NOT NULL CHECK (status IN ('complete', 'interrupted', 'failed')),
    model_name VARCHAR NOT NULL,
    model_weights VARCHAR NOT NULL,
    weights_sha256 VARCHAR NOT NULL,
    git_commit VARCHAR,
    git_dirty BOOLEAN,
    code_sha256 VARCHAR NOT NULL,
    lock_sha256 VARCHAR,
    image VARCHAR NOT NULL,
    packages JSON NOT NULL,
    argv JSON NOT NULL,
    os_kernel VARCHAR NOT NULL,
    cpu_model VARCHAR NOT NULL,
    cpu_flags_sha256 VARCHAR,
    cpus_online INTEGER NOT NULL CHECK (cpus_online > 0),
    cpus_allowed JSON NOT NULL,
    governor VARCHAR,
    memory_bytes BIGINT NOT NULL CHECK (memory_bytes > 0),
    stream_bytes_s DOUBLE CHECK (isfinite(stream_bytes_s) AND stream_bytes_s > 0),
    load_start DOUBLE CHECK (isfinite(load_start)),
    load_end DOUBLE CHECK (isfinite(load_end))
);
COMMENT ON TABLE campaign IS 'One start of the harness on one machine, with its environment and provenance';
COMMENT ON COLUMN campaign.campaign_id IS 'Identifier, made from the start time and random bits';
COMMENT ON COLUMN campaign.series_id IS 'First campaign of a plan that was interrupted and continued; its own id otherwise';
COMMENT ON COLUMN campaign.plan IS 'Name of the plan';
COMMENT ON COLUMN campaign.plan_key IS 'Hash of the plan, its cases and the method';
COMMENT ON COLUMN campaign.method_version IS 'Version of the way of measuring; part of every comparison key';
COMMENT ON COLUMN campaign.engine IS 'Program that generated the tokens, with its version';
COMMENT ON COLUMN campaign.started_at IS 'UTC';
COMMENT ON COLUMN campaign.ended_at IS 'UTC; NULL while running or after a crash';
COMMENT ON COLUMN campaign.status IS 'complete, interrupted or failed';
COMMENT ON COLUMN campaign.model_name IS 'Reference the user gave';
COMMENT ON COLUMN campaign.model_weights IS 'What the weights are: checkpoint, dequantised Q4_K_M, dequantised GGUF or random';
COMMENT ON COLUMN campaign.weights_sha256 IS 'Hash of the safetensors files';
COMMENT ON COLUMN campaign.git_commit IS 'Commit of the suite; NULL outside a git checkout';
COMMENT ON COLUMN campaign.git_dirty IS 'Whether tracked files differed from the commit';
COMMENT ON COLUMN campaign.code_sha256 IS 'Hash of the sources of suite, weightless_fw and kernels as they ran';
COMMENT ON COLUMN campaign.lock_sha256 IS 'Hash of uv.lock';
COMMENT ON COLUMN campaign.image IS 'Container image id, or native';
COMMENT ON COLUMN campaign.packages IS 'Versions of the packages that matter, by name';
COMMENT ON COLUMN campaign.argv IS 'Command line, without paths of the user';
COMMENT ON COLUMN campaign.os_kernel IS 'Operating system kernel release';
COMMENT ON COLUMN campaign.cpu_model IS 'Model name of the CPU';
COMMENT ON COLUMN campaign.cpu_flags_sha256 IS 'Hash of the sorted CPU feature flags';
COMMENT ON COLUMN campaign.cpus_online IS 'Logical CPUs of the machine';
COMMENT ON COLUMN campaign.cpus_allowed IS 'Logical CPUs this process may run on';
COMMENT ON COLUMN campaign.governor IS 'Frequency governor of CPU 0; NULL where the kernel shows none';
COMMENT ON COLUMN campaign.memory_bytes IS 'Physical memory';
COMMENT ON COLUMN campaign.stream_bytes_s IS 'Measured stream bandwidth of this machine in bytes per second; NULL if not measured';
COMMENT ON COLUMN campaign.load_start IS 'One-minute load average when the campaign started';
COMMENT ON COLUMN campaign.load_end IS 'One-minute load average when it ended';

CREATE TABLE "case" (
    case_id VARCHAR PRIMARY KEY,
    label VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    groups INTEGER CHECK (groups > 0),
    rank INTEGER CHECK (rank > 0),
    quant VARCHAR NOT NULL,
    qkv_fuse BOOLEAN,
    gate_up_fuse BOOLEAN,
    capture BOOLEAN NOT NULL,
    prompt VARCHAR NOT NULL,
    new_tokens INTEGER NOT NULL CHECK (new_tokens >= 2)
);
COMMENT ON TABLE "case" IS 'One fully resolved configuration';
COMMENT ON COLUMN "case".case_id IS 'Hash of all other columns and of the method version';
COMMENT ON COLUMN "case".label IS 'Short name, unique within a plan';
COMMENT ON COLUMN "case".model IS 'Model reference';
COMMENT ON COLUMN "case".device IS 'cpu or the accelerator';
COMMENT ON COLUMN "case".path IS 'native-dense, custom-op, gemm, precompute or auto';
COMMENT ON COLUMN "case".groups IS 'Bands that share a W0; NULL is one band per layer (or native dense)';
COMMENT ON COLUMN "case".rank IS 'Columns of U and V; NULL for native dense';
COMMENT ON COLUMN "case".quant IS 'Quantisation of the projections';
COMMENT ON COLUMN "case".qkv_fuse IS 'Q, K and V in one matrix; NULL is the default of the path';
COMMENT ON COLUMN "case".gate_up_fuse IS 'Gate and up in one matrix; NULL is the default of the path';
COMMENT ON COLUMN "case".capture IS 'Device graph capture';
COMMENT ON COLUMN "case".prompt IS 'Prompt text';
COMMENT ON COLUMN "case".new_tokens IS 'Tokens to generate';

CREATE TABLE pair (
    campaign_id VARCHAR NOT NULL REFERENCES campaign (campaign_id),
    case_id VARCHAR NOT NULL REFERENCES "case" (case_id),
    reference_case_id VARCHAR NOT NULL REFERENCES "case" (case_id),
    status VARCHAR NOT NULL CHECK (status IN ('ok', 'failed', 'oom', 'timeout', 'skipped', 'interrupted')),
    reason VARCHAR,
    rounds INTEGER NOT NULL CHECK (rounds >= 0),
    finished_at TIMESTAMP NOT NULL,
    PRIMARY KEY (campaign_id, case_id),
    CHECK ((status = 'ok') = (reason IS NULL)),
    CHECK (status <> 'ok' OR rounds > 0)
);
COMMENT ON TABLE pair IS 'One case measured against native dense in one process, rounds interleaved A B B A';
COMMENT ON COLUMN pair.campaign_id IS 'Campaign';
COMMENT ON COLUMN pair.case_id IS 'The measured case';
COMMENT ON COLUMN pair.reference_case_id IS 'Native dense for the same model, device and workload';
COMMENT ON COLUMN pair.status IS 'ok, failed, oom, timeout, skipped or interrupted';
COMMENT ON COLUMN pair.reason IS 'Why it is not ok; NULL when it is';
COMMENT ON COLUMN pair.rounds IS 'Complete measured rounds';
COMMENT ON COLUMN pair.finished_at IS 'UTC';

CREATE TABLE arm (
    campaign_id VARCHAR NOT NULL REFERENCES campaign (campaign_id),
    pair_case_id VARCHAR NOT NULL REFERENCES "case" (case_id),
    case_id VARCHAR NOT NULL REFERENCES "case" (case_id),
    path_ran VARCHAR NOT NULL,
    path_reason VARCHAR NOT NULL,
    groups_ran INTEGER CHECK (groups_ran > 0),
    dtype VARCHAR NOT NULL,
    compile_s DOUBLE NOT NULL CHECK (isfinite(compile_s)),
    load_s DOUBLE NOT NULL CHECK (isfinite(load_s)),
    check_s DOUBLE NOT NULL CHECK (isfinite(check_s)),
    graph_ops JSON NOT NULL,
    custom_ops JSON NOT NULL,
    weight_shapes JSON NOT NULL,
    resident_bytes BIGINT NOT NULL CHECK (resident_bytes > 0),
    bytes_per_token_terms JSON NOT NULL,
    agreement DOUBLE NOT NULL CHECK (isfinite(agreement)),
    agreement_perturbed DOUBLE CHECK (isfinite(agreement_perturbed)),
    perturbation_effect DOUBLE CHECK (isfinite(perturbation_effect)),
    tolerance DOUBLE NOT NULL CHECK (isfinite(tolerance)),
    zero_factors BOOLEAN,
    greedy_text VARCHAR,
    tags JSON NOT NULL,
    PRIMARY KEY (campaign_id, pair_case_id, case_id),
    FOREIGN KEY (campaign_id, pair_case_id) REFERENCES pair (campaign_id, case_id)
);
COMMENT ON TABLE arm IS 'What really ran for a case in a campaign, read back from the built graph and checked before timing';
COMMENT ON COLUMN arm.campaign_id IS 'Campaign';
COMMENT ON COLUMN arm.pair_case_id IS 'The measured case of the pair that built it; native dense stays loaded for later pairs';
COMMENT ON COLUMN arm.case_id IS 'The case that was built: the pair''s case or native dense';
COMMENT ON COLUMN arm.path_ran IS 'Path of the built graph';
COMMENT ON COLUMN arm.path_reason IS 'Why this path was chosen';
COMMENT ON COLUMN arm.groups_ran IS 'Bands of the built graph; NULL for native dense';
COMMENT ON COLUMN arm.dtype IS 'Type of weights and activations';
COMMENT ON COLUMN arm.compile_s IS 'Seconds in the compiler, from a cache where it was warm; cold graphs of several cases compile side by side, so these seconds may overlap';
COMMENT ON COLUMN arm.load_s IS 'Seconds to read weights, factor, pack, trace and bind them';
COMMENT ON COLUMN arm.check_s IS 'Seconds for the checks against the numpy reference';
COMMENT ON COLUMN arm.graph_ops IS 'Operations of the built graph by name and count, layer bodies counted once per call';
COMMENT ON COLUMN arm.custom_ops IS 'Custom operations by name and count';
COMMENT ON COLUMN arm.weight_shapes IS 'Distinct shapes of the bound projection weights and factors, by name';
COMMENT ON COLUMN arm.resident_bytes IS 'Bytes of all bound weights';
COMMENT ON COLUMN arm.bytes_per_token_terms IS 'Bytes read per decode step, by term';
COMMENT ON COLUMN arm.agreement IS 'Largest logit difference to the numpy reference, relative to the largest logit';
COMMENT ON COLUMN arm.agreement_perturbed IS 'The same with s, U and V perturbed; NULL for native dense';
COMMENT ON COLUMN arm.perturbation_effect IS 'Largest logit change that the perturbation caused, relative to the largest logit; NULL for native dense';
COMMENT ON COLUMN arm.tolerance IS 'Declared bound on both agreements';
COMMENT ON COLUMN arm.zero_factors IS 'Whether U V^T is zero by construction (pass-through); NULL for native dense';
COMMENT ON COLUMN arm.greedy_text IS 'Greedy continuation of the prompt, its start; NULL where there is no tokenizer';
COMMENT ON COLUMN arm.tags IS 'What a reader must know, for instance random weights or no training after sharing';

CREATE TABLE run (
    run_id VARCHAR PRIMARY KEY,
    campaign_id VARCHAR NOT NULL REFERENCES campaign (campaign_id),
    pair_case_id VARCHAR NOT NULL REFERENCES "case" (case_id),
    case_id VARCHAR NOT NULL REFERENCES "case" (case_id),
    round INTEGER NOT NULL CHECK (round >= 0),
    slot INTEGER NOT NULL CHECK (slot IN (0, 1)),
    warmup BOOLEAN NOT NULL,
    status VARCHAR NOT NULL CHECK (status IN ('ok', 'failed', 'short')),
    reason VARCHAR,
    started_at TIMESTAMP NOT NULL,
    t_send DOUBLE NOT NULL CHECK (isfinite(t_send)),
    event_t DOUBLE[] NOT NULL,
    event_n INTEGER[] NOT NULL,
    prompt_tokens INTEGER NOT NULL CHECK (prompt_tokens > 0),
    cached_tokens INTEGER CHECK (cached_tokens BETWEEN 0 AND prompt_tokens),
    prompt_ids_sha256 VARCHAR NOT NULL,
    output_ids_sha256 VARCHAR NOT NULL,
    FOREIGN KEY (campaign_id, pair_case_id) REFERENCES pair (campaign_id, case_id),
    CHECK (len(event_t) = len(event_n)),
    CHECK (len(event_n) = 0 OR list_min(event_n) >= 0),
    CHECK (len(event_t) = 0 OR (event_t[1] >= t_send AND isfinite(list_max(event_t)))),
    CHECK (event_t = list_sort(event_t)),
    CHECK ((status = 'ok') = (reason IS NULL))
);
COMMENT ON TABLE run IS 'One request of one case in one round, with its raw events';
COMMENT ON COLUMN run.run_id IS 'Identifier: campaign, pair, round, slot, warm-up';
COMMENT ON COLUMN run.campaign_id IS 'Campaign';
COMMENT ON COLUMN run.pair_case_id IS 'The measured case of the pair this run belongs to';
COMMENT ON COLUMN run.case_id IS 'The case that ran: the pair''s case or native dense';
COMMENT ON COLUMN run.round IS 'Round within the pair, from 0; warm-up rounds count on their own';
COMMENT ON COLUMN run.slot IS '0 if it ran first in its round, 1 if second';
COMMENT ON COLUMN run.warmup IS 'Warm-up runs are stored and left out of every aggregate';
COMMENT ON COLUMN run.status IS 'ok, failed, or short when the output length differs from the request';
COMMENT ON COLUMN run.reason IS 'Why it is not ok';
COMMENT ON COLUMN run.started_at IS 'UTC';
COMMENT ON COLUMN run.t_send IS 'Seconds on the monotonic clock when the call was entered, the prompt already tokenised';
COMMENT ON COLUMN run.event_t IS 'Seconds on the same clock when tokens became readable';
COMMENT ON COLUMN run.event_n IS 'How many tokens each event brought';
COMMENT ON COLUMN run.prompt_tokens IS 'Length of the prompt in tokens';
COMMENT ON COLUMN run.cached_tokens IS 'Prompt tokens served from a prefix cache; NULL if unknown';
COMMENT ON COLUMN run.prompt_ids_sha256 IS 'Hash of the prompt ids';
COMMENT ON COLUMN run.output_ids_sha256 IS 'Hash of the generated ids';

CREATE TABLE reference (
    reference_id VARCHAR PRIMARY KEY,
    source VARCHAR NOT NULL,
    hardware VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    rank INTEGER,
    groups INTEGER,
    quant VARCHAR NOT NULL,
    capture BOOLEAN,
    decode_tok_s DOUBLE NOT NULL CHECK (isfinite(decode_tok_s) AND decode_tok_s > 0),
    native_decode_tok_s DOUBLE CHECK (isfinite(native_decode_tok_s) AND native_decode_tok_s > 0),
    note VARCHAR
);
COMMENT ON TABLE reference IS 'Figures published elsewhere, as published; never part of a verdict';
COMMENT ON COLUMN reference.reference_id IS 'Short name';
COMMENT ON COLUMN reference.source IS 'Title of the document';
COMMENT ON COLUMN reference.hardware IS 'Machine';
COMMENT ON COLUMN reference.model IS 'Model';
COMMENT ON COLUMN reference.path IS 'Path, in the words of this suite';
COMMENT ON COLUMN reference.rank IS 'LoRA rank; NULL if not stated or none';
COMMENT ON COLUMN reference.groups IS 'Bands that share a W0; NULL if not stated';
COMMENT ON COLUMN reference.quant IS 'Quantisation';
COMMENT ON COLUMN reference.capture IS 'Device graph capture; NULL if not stated';
COMMENT ON COLUMN reference.decode_tok_s IS 'Decode tokens per second';
COMMENT ON COLUMN reference.native_decode_tok_s IS 'Native dense in the same document and conditions; NULL if none';
COMMENT ON COLUMN reference.note IS 'Conditions';

CREATE VIEW run_metrics AS
WITH counted AS (
    SELECT *, list_filter(list_zip(event_t, event_n), lambda e: e[2] > 0) AS events
    FROM run
), ends AS (
    SELECT *,
        list_sum(event_n) AS tokens,
        events[1][1] AS t_first,
        events[1][2] AS n_first,
        events[-1][1] AS t_last
    FROM counted
)
SELECT run_id, campaign_id, pair_case_id, case_id, round, slot, warmup, status, reason,
    started_at, prompt_tokens, cached_tokens,
    coalesce(tokens, 0)::BIGINT AS tokens,
    1000 * (t_first - t_send) AS ttft_ms,
    CASE WHEN tokens > n_first AND t_last > t_first
         THEN 1000 * (t_last - t_first) / (tokens - n_first) END AS tpot_ms,
    CASE WHEN tokens > n_first AND t_last > t_first
         THEN (tokens - n_first) / (t_last - t_first) END AS decode_tok_s,
    CASE WHEN cached_tokens IS NOT NULL AND t_first > t_send
         THEN (prompt_tokens - cached_tokens) / (t_first - t_send) END AS prefill_tok_s,
    CASE WHEN status <> 'failed' THEN 1000 * (t_last - t_send) END AS e2e_ms
FROM ends;
COMMENT ON VIEW run_metrics IS 'Metrics of each run, derived from its events: TTFT, TPOT, decode and prefill rate, end to end';

CREATE VIEW measured_runs AS
SELECT * FROM run_metrics WHERE NOT warmup AND status = 'ok' AND tpot_ms IS NOT NULL;
COMMENT ON VIEW measured_runs IS 'The runs that aggregates may use: complete, not warm-up, with a decode rate';
