"""/metrics: what Prometheus collects, under the names that vLLM gives it (its `vllm/v1/metrics/loggers.py`).

Gauges and counters of an engine are read when they are asked for. Histograms take one request at a time, when it is
over. What vLLM has no name for begins with `localinfer:`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from localinfer.engine.statistics import EngineStatistics
from localinfer.engine.thread import EngineThread
from localinfer.server.record import RequestRecord
from localinfer.server.registry import ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name", "engine")
ENGINE = "0"  # vLLM numbers the engines of one model; here a model has one

# Upper bounds of the buckets: vLLM's, so that its dashboards fit.
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
ANSWERS = (1, 2, 5, 10, 20)

# Our finish reason -> vLLM's name of it.
FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error", "loop": "repetition"}


class _Row(NamedTuple):
    """A number of an engine: its name, what it is, and how it is read."""

    name: str
    about: str
    read: Callable[[EngineStatistics], float]


def _kv_usage(counts: EngineStatistics) -> float:
    return counts.kv_blocks_used / counts.kv_blocks_total if counts.kv_blocks_total else 0.0


_GAUGES = (
    _Row("vllm:num_requests_running", "Requests that take part in steps.", lambda s: s.running),
    _Row("vllm:num_requests_waiting", "Requests that wait for their turn.", lambda s: s.waiting),
    _Row("vllm:kv_cache_usage_perc", "KV blocks in use, as a fraction: 1 is all.", _kv_usage),
    _Row("vllm:gpu_cache_usage_perc", "The older name of vllm:kv_cache_usage_perc.", _kv_usage),
    _Row("localinfer:kv_blocks", "KV blocks that there are.", lambda s: s.kv_blocks_total),
    _Row("localinfer:kv_waste_tokens", "Places in used KV blocks that hold nothing.", lambda s: s.kv_waste_tokens),
)
_COUNTERS = (
    _Row("vllm:prompt_tokens", "Tokens of prompts, cached ones included.", lambda s: s.prompt_tokens),
    _Row("vllm:generation_tokens", "Tokens drawn.", lambda s: s.generated_tokens),
    _Row("vllm:prefix_cache_queries", "Tokens looked for in the prefix cache.", lambda s: s.prompt_tokens),
    _Row("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", lambda s: s.cached_tokens),
    _Row("vllm:num_preemptions", "How often a request made room for others.", lambda s: s.preemptions),
    _Row("vllm:spec_decode_num_draft_tokens", "Tokens drafted by speculation.", lambda s: s.drafted),
    _Row("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were right.", lambda s: s.accepted),
    _Row("localinfer:steps", "Steps of the engine.", lambda s: s.steps),
    _Row("localinfer:steps_mixed", "Steps with prompts and answers.", lambda s: s.steps_mixed),
    _Row("localinfer:steps_cached", "Steps that the prefix cache spared work.", lambda s: s.steps_cached),
    _Row("localinfer:steps_speculated", "Steps with drafted tokens.", lambda s: s.steps_speculated),
)


class Metrics:
    """Everything that is counted for one server. One thread uses it: that of the event loop."""

    def __init__(self, models: Callable[[], Iterable[ServedModel]], lost_lines: Callable[[], int] = lambda: 0) -> None:
        """`models` gives those that are in memory, `lost_lines` how many lines of the log could not be written."""
        self._registry = CollectorRegistry()
        self._engines = _Engines(models, lost_lines)
        self._registry.register(self._engines)
        self._first_token = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", FIRST_TOKEN)
        self._gap = self._histogram("vllm:inter_token_latency_seconds", "Between tokens of a request.", PER_TOKEN)
        self._older_gap = self._histogram(
            "vllm:time_per_output_token_seconds", "The older name of vllm:inter_token_latency_seconds.", PER_TOKEN
        )
        self._per_token = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean of a request: decode by tokens.", PER_TOKEN
        )
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", LATENCY)
        self._queue = self._histogram("vllm:request_queue_time_seconds", "Arrival to first step.", LATENCY)
        self._inference = self._histogram("vllm:request_inference_time_seconds", "First step to last token.", LATENCY)
        self._prefill = self._histogram("vllm:request_prefill_time_seconds", "First step to first token.", LATENCY)
        self._decode = self._histogram("vllm:request_decode_time_seconds", "First token to last.", LATENCY)
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Tokens of the prompts of a request.", TOKENS)
        self._generated = self._histogram("vllm:request_generation_tokens", "Tokens drawn for a request.", TOKENS)
        self._answers = self._histogram("vllm:request_params_n", "Answers to a prompt that were asked for.", ANSWERS)
        self._limit = self._histogram("vllm:request_params_max_tokens", "max_tokens, where it was given.", TOKENS)
        self._finished = self._counter("vllm:request_success", "Answers that ended.", *LABELS, "finished_reason")
        self._near_misses = self._counter(
            "localinfer:prefix_near_misses",
            "Requests that parted from the prefix cache: see the log.",
            *LABELS,
        )
        self._http = self._counter("localinfer:http_requests", "Requests that ended.", "endpoint", "status")

    def request(self, record: RequestRecord) -> None:
        """Counts a request that is over."""
        self._http.labels(record.endpoint, str(record.status)).inc()
        if not record.requests:
            return
        self._engines.look()  # while the model is certainly there
        labels = (record.model, ENGINE)
        for reason, name in FINISHED.items():  # all of them, so that none appears with a number other than 0 at first
            self._finished.labels(*labels, name).inc(record.finish_reasons.count(reason))
        if record.near_miss is not None:
            self._near_misses.labels(*labels).inc()
        for histogram in (self._gap.labels(*labels), self._older_gap.labels(*labels)):
            for gap in record.gaps:
                histogram.observe(gap)
        self._whole.labels(*labels).observe(record.total_seconds)
        self._queue.labels(*labels).observe(record.queue_seconds)
        self._prompt.labels(*labels).observe(record.prompt_tokens)
        if record.first_token:
            self._first_token.labels(*labels).observe(record.first_token - record.arrived)
            self._prefill.labels(*labels).observe(record.prefill_seconds)
            self._decode.labels(*labels).observe(record.decode_seconds)
            self._inference.labels(*labels).observe(record.prefill_seconds + record.decode_seconds)
            self._generated.labels(*labels).observe(record.generated_tokens)
        if record.tokens_per_second:
            self._per_token.labels(*labels).observe(1 / record.tokens_per_second)
        params = record.requests[0].params
        self._answers.labels(*labels).observe(params.n)
        if params.max_tokens is not None:
            self._limit.labels(*labels).observe(params.max_tokens)

    def render(self) -> bytes:
        """What Prometheus reads: the text format, version 0.0.4."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, LABELS, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self._registry)


@dataclass
class _Seen:
    """An engine, without keeping it in memory, and what it had counted when it was last looked at."""

    model: str
    thread: weakref.ref[EngineThread]
    counts: EngineStatistics


class _Engines(Collector):
    """Reads the engines' own counts. A model's counters go on where they were when it is unloaded and loaded again."""

    def __init__(self, models: Callable[[], Iterable[ServedModel]], lost_lines: Callable[[], int]) -> None:
        self._models = models
        self._lost_lines = lost_lines
        self._seen: list[_Seen] = []
        self._ended: dict[str, EngineStatistics] = {}  # sums of what the ended engines of a model counted

    def look(self) -> None:
        """Reads what every engine has counted by now."""
        loaded = {model.thread: model.name for model in self._models()}
        for seen in list(self._seen):
            thread = seen.thread()
            if thread is not None and thread in loaded:
                seen.counts = thread.engine.statistics
                del loaded[thread]
            else:
                self._ended[seen.model] = _sum(self._ended[seen.model], seen.counts)
                self._seen.remove(seen)
        for thread, name in loaded.items():
            self._seen.append(_Seen(name, weakref.ref(thread), thread.engine.statistics))
            self._ended.setdefault(name, EngineStatistics())

    def collect(self) -> Iterator[Metric]:
        self.look()
        now = {model: EngineStatistics() for model in self._ended} | {seen.model: seen.counts for seen in self._seen}
        for row in _GAUGES:
            gauge = GaugeMetricFamily(row.name, row.about, labels=LABELS)
            for model, counts in now.items():
                gauge.add_metric((model, ENGINE), row.read(counts))
            yield gauge
        for row in _COUNTERS:
            counter = CounterMetricFamily(row.name, row.about, labels=LABELS)
            for model, counts in now.items():
                counter.add_metric((model, ENGINE), row.read(_sum(self._ended[model], counts)))
            yield counter
        about = "Lines of the log that could not be written."
        yield CounterMetricFamily("localinfer:log_lines_lost", about, value=self._lost_lines())


def _sum(one: EngineStatistics, other: EngineStatistics) -> EngineStatistics:
    return EngineStatistics(**{f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(EngineStatistics)})
