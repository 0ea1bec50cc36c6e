"""LiteLLM: the response cache forgets what the Responses API adds to a request.

The key of the cache was made of a list of known parameters, and `instructions` was not on it. Two
callers with one question and unlike instructions (which is where a system prompt goes, and with it
all that an application knows of its user) shared an answer: the second got the first one's.

Sources: https://github.com/BerriAI/litellm/pull/25673 (a customer's report and the repair; of the
same kind, of parameters only: https://github.com/BerriAI/litellm/issues/894 and
https://github.com/BerriAI/litellm/issues/9844). 1.83.8 has the fault, 1.83.9 does not.
"""

import pytest
from museum import harness

pytestmark = [pytest.mark.museum, pytest.mark.timeout(1200)]

SERVICE = harness.EXHIBITS / "litellm_cache_key" / "service.py"
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""It would ask another machine for a list of prices."""


def looked_at(release, out, *flags):
    """What leakcheck makes of an assistant behind a release of LiteLLM."""
    python = harness.environment(f"litellm=={release}")
    with (
        harness.engine(out / "engine.log") as engine,
        harness.serving(
            python, SERVICE, engine["base_url"], log=out / "service.log", env=OFFLINE
        ) as service,
    ):
        assert service["release"] == release
        return harness.leakcheck(
            service["base_url"], engine["model"], "identity-twins", out=out, flags=flags
        )


def test_a_caller_gets_the_answer_to_the_instructions_of_another(tmp_path):
    seen = looked_at("1.83.8", tmp_path)
    assert seen.status == "leak", seen.screen
    assert seen.exit_code == 1
    assert "foreign-passphrase" in seen.anomalies


def test_instructions_in_the_key_keep_callers_apart(tmp_path):
    seen = looked_at("1.83.9", tmp_path, "--detect", "20%", *harness.FEW)
    assert seen.status == "clean", seen.screen
