"""The real thing on a tiny model: MAX compiles, agrees, is timed, and is stored.

One run of the plan `smoke` serves every test here: its three graphs take
minutes to compile on a cold cache.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from suite.models import default_cache_dir
from suite.results.store import connect

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 1500

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Smoke:
    folder: Path
    exit_code: int
    output: str
    progress: str

    @property
    def database(self) -> Path:
        return self.folder / "results.duckdb"

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with connect(self.database) as connection:
            cursor = connection.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arm(self, path: str) -> dict[str, Any]:
        (row,) = self.rows(
            f"""SELECT a.* FROM arm a JOIN "case" c USING (case_id)
                WHERE c.path = '{path}' ORDER BY pair_case_id LIMIT 1"""
        )
        return row


def suite_command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "suite", *words, "--db", str(folder / "results.duckdb")]


def bench_command(folder: Path, *words: str) -> list[str]:
    return suite_command(folder, "bench", "--bundles", str(folder / "bundles"), *words)


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Smoke:
    folder = tmp_path_factory.mktemp("smoke")
    done = run(bench_command(folder, "--plan", "smoke"))
    return Smoke(folder, done.returncode, done.stdout, done.stderr)


def test_the_plan_runs_to_its_end(smoke: Smoke) -> None:
    assert smoke.exit_code == 0, smoke.progress
    assert "3 of 3 cases ok" in smoke.output
    assert "random weights: speed only" in smoke.output
    assert "0 cases to go" not in smoke.progress
    assert "(2 cases to go)" in smoke.progress


@pytest.mark.parametrize("path", ["native-dense", "custom-op", "gemm"])
def test_logits_agree_with_numpy(smoke: Smoke, path: str) -> None:
    arm = smoke.arm(path)
    assert arm["agreement"] < 1e-5
    if path != "native-dense":
        assert arm["agreement_perturbed"] < 1e-5
        assert arm["perturbation_effect"] > 0.01


def test_native_dense_is_stock_fused_and_without_our_op(smoke: Smoke) -> None:
    """Four matmuls a layer (QKV, O, gate/up, down) and the head."""
    arm = smoke.arm("native-dense")
    assert json.loads(arm["graph_ops"])["rmo.matmul"] == 4 * 4 + 1
    assert "generated_linear" not in arm["custom_ops"]


def test_the_custom_op_runs_for_every_projection_and_shares_w0(smoke: Smoke) -> None:
    arm = smoke.arm("custom-op")
    assert json.loads(arm["custom_ops"])["generated_linear"] == 7 * 4
    assert json.loads(arm["graph_ops"])["rmo.matmul"] == 1
    assert arm["groups_ran"] == 1
    assert arm["zero_factors"] is False
    shapes = json.loads(arm["weight_shapes"])
    assert shapes["bands.mlp.down_proj.w0"] == "64 x 128"


def test_one_band_holds_a_quarter_of_the_projections_and_reads_all(smoke: Smoke) -> None:
    """Four layers share each W0: resident once, read once per layer."""
    native, shared = smoke.arm("native-dense"), smoke.arm("custom-op")
    native_terms = json.loads(native["bytes_per_token_terms"])
    shared_terms = json.loads(shared["bytes_per_token_terms"])
    assert shared_terms["projections"] == native_terms["projections"]
    factors = shared_terms["factors"] + shared_terms["scales"]
    expected = native["resident_bytes"] - native_terms["projections"] * 3 // 4 + factors
    assert shared["resident_bytes"] == expected


def test_gemm_runs_two_matmuls_per_fused_group(smoke: Smoke) -> None:
    arm = smoke.arm("gemm")
    assert json.loads(arm["graph_ops"])["rmo.matmul"] == 2 * 4 * 4 + 1
    assert arm["groups_ran"] == 4
    assert arm["zero_factors"] is True
    # Q, K, V: 128 + 32 + 32 rows, three times rank 4, padded to 32 floats.
    shapes = json.loads(arm["weight_shapes"])
    assert shapes["layers.self_attn.qkv_proj.w0_v_t"] == "224 x 64"
    assert shapes["layers.self_attn.qkv_proj.up"] == "192 x 12"


def test_pass_through_arms_generate_what_native_dense_does(smoke: Smoke) -> None:
    outputs = smoke.rows(
        """SELECT DISTINCT c.path, output_ids_sha256 FROM run JOIN "case" c USING (case_id)"""
    )
    hashes = {row["path"]: row["output_ids_sha256"] for row in outputs}
    assert len(outputs) == 3, "an arm generated different tokens in different rounds"
    assert hashes["gemm"] == hashes["native-dense"]
    assert hashes["custom-op"] != hashes["native-dense"]


def test_events_are_one_token_each_and_in_order(smoke: Smoke) -> None:
    for row in smoke.rows("SELECT t_send, event_t, event_n FROM run"):
        assert row["event_n"] == [1] * 8
        times = [row["t_send"], *row["event_t"]]
        assert times == sorted(times)


def test_provenance_is_recorded(smoke: Smoke) -> None:
    (campaign,) = smoke.rows("SELECT * FROM campaign")
    assert campaign["status"] == "complete"
    assert campaign["engine"].startswith("max 26.7")
    assert campaign["model_weights"] == "random"
    assert campaign["cpus_allowed"]
    assert json.loads(campaign["packages"])["max"] == "26.7.0"
    everything = json.dumps(campaign, default=str)
    assert str(Path.home()) not in everything
    assert os.uname().nodename not in everything


def test_the_summary_is_strict_json(smoke: Smoke) -> None:
    done = run([sys.executable, "-m", "suite", "summary", "--json", str(smoke.database)])
    assert done.returncode == 0
    rows = json.loads(done.stdout, parse_constant=lambda text: pytest.fail(text))
    assert {row["path"] for row in rows} == {"native-dense", "custom-op", "gemm"}
    for row in rows:
        assert row["status"] == "ok"
        assert row["decode_tok_s"] > 0
        assert row["kl"] is None


@pytest.fixture
def interrupted(tmp_path: Path, smoke: Smoke) -> Iterator[subprocess.Popen[str]]:
    """A run of the same plan, stopped by Ctrl-C during its second case."""
    process = subprocess.Popen(
        bench_command(tmp_path, "--plan", "smoke"),
        cwd=ROOT,
        # MAX, once imported, changes the C environment that children inherit by default.
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "gemm r=4 G=layers: round 1" in line:
            process.send_signal(signal.SIGINT)
            break
    yield process
    process.kill()


def test_ctrl_c_keeps_what_is_done_and_the_next_run_continues(
    interrupted: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert interrupted.stderr is not None
    rest = interrupted.stderr.read()
    assert interrupted.wait(timeout=60) == 130
    assert "the same command continues" in rest
    assert "Traceback" not in rest
    assert workers_of(tmp_path) == []

    done = run(bench_command(tmp_path, "--plan", "smoke"))
    assert done.returncode == 0, done.stderr
    assert "continuing: 1 of 2 cases are already measured" in done.stderr
    assert "3 of 3 cases ok" in done.stdout


def workers_of(folder: Path) -> list[str]:
    """Worker processes whose log lies in ``folder``, a second after their end."""
    time.sleep(1)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in str((process / "fd" / "2").readlink()):
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("{path: gemm, rank: 33}", "rank=33: a 32 x 64 projection takes ranks 1 to 32"),
        ("{path: gemm, rank: 4, groups: 5}", "groups=5: 4 layers"),
    ],
)
def test_a_case_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, case: str, said: str
) -> None:
    plan = tmp_path / "wrong.yaml"
    plan.write_text(
        "model: synthetic:gemma-3-tiny\nrounds: 2\n"
        f"workload: {{prompt: x, new_tokens: 4}}\ncases: [{case}]\n"
    )
    done = run(bench_command(tmp_path, "--plan", str(plan)))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results.duckdb").exists()


def test_run_max_is_max_with_the_architecture(smoke: Smoke) -> None:
    """The GEMM graph of the smoke plan again, so it comes from the cache."""
    done = run(
        [
            sys.executable,
            "run_max.py",
            "generate",
            "--model",
            str(default_cache_dir() / "models" / "synthetic-gemma-3-tiny"),
            "--devices",
            "cpu",
            "--max-length",
            "256",
            "--max-new-tokens",
            "4",
            "--prompt",
            "weightless",
        ],
        WEIGHTLESS_GEMM="1",
        HF_HUB_OFFLINE="1",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "weightless path: gemm (WEIGHTLESS_GEMM=1)" in done.stderr + done.stdout


def test_a_compressed_checkpoint_runs_and_agrees(smoke: Smoke, tmp_path: Path) -> None:
    """Dense folder in, NVFP4 with a rank-4 residual out, and MAX's logits are numpy's of it.

    The factors have the shapes of the smoke plan's GEMM case, so its graph is reused.
    """
    dense = default_cache_dir() / "models" / "synthetic-gemma-3-tiny"
    out = tmp_path / "compressed"
    words = ["compress", str(dense), "--rank", "4", "--quant", "nvfp4", "--method", "svd"]
    done = run([sys.executable, "-m", "weightless_fw", *words, "--out", str(out)])
    assert done.returncode == 0, done.stderr
    request = {
        "op": "load",
        "arm": "measured",
        "path": "gemm",
        "environment": {"WEIGHTLESS_GEMM": "1"},
        "folder": str(out),
        "device": "cpu",
        "capture": False,
        "max_length": 256,
        "probe_ids": [2, 5, 9, 11],
        "context_tokens": 8.0,
    }
    worker = subprocess.run(
        [sys.executable, "-m", "suite.worker"],
        input=json.dumps(request) + "\n",
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    answer = json.loads(worker.stdout)
    assert answer["ok"], answer.get("message")
    assert answer["agreement"] < 1e-5
    assert answer["agreement_perturbed"] < 1e-5
    assert answer["zero_factors"] is False
    assert answer["groups_ran"] == 4


def test_a_wrong_switch_is_one_line_of_run_max(smoke: Smoke) -> None:
    folder = default_cache_dir() / "models" / "synthetic-gemma-3-tiny"
    words = ["generate", "--model", str(folder), "--devices", "cpu", "--prompt", "x"]
    done = run([sys.executable, "run_max.py", *words], WEIGHTLESS_GEMM="maybe")
    assert done.returncode == 2
    assert "run_max: WEIGHTLESS_GEMM=maybe: must be one of 1, true" in done.stderr
    assert "Traceback" not in done.stderr
