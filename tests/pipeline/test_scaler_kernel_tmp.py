import numpy as np
from hypothesis import given, strategies as st
from fairlead.core.partitions import DrainReport, PartitionConfig
from fairlead.core.scaling import AdaptiveScaler, RateWindow, ScalerSettings
from fairlead.pipeline.kernels.scaler import Model, replay

def live(counts, settings, model, initial):
    window = RateWindow(bucket_s=model.bucket_s, buckets=2, started_s=0.0)
    scaler, config, backlog, decisions = AdaptiveScaler(), PartitionConfig(0, initial, initial), 0.0, []
    next_tick = settings.interval_s
    for b, c in enumerate(counts):
        window.add(int(c), b * model.bucket_s)
        backlog = max(0.0, backlog + c - config.write * model.partition_rps * model.bucket_s)
        now = (b + 1) * model.bucket_s
        if now >= next_tick - 1e-9:
            rates = dict.fromkeys(range(config.read), 0.0) | {0: window.rate(now)}
            reports = [DrainReport(p, config.version, 0, 0 if backlog <= 0 else 1) for p in range(config.write, config.read)]
            config = scaler.tick(now, config, rates, reports, settings).after
            decisions.append((config.write, config.read))
            next_tick += settings.interval_s
    return decisions

S = st.builds(ScalerSettings, upscale_rps=st.sampled_from([1.0, 2.0, 10.0, 33.3]), downscale_factor=st.sampled_from([0.3,0.75,0.9]),
  upscale_sustained_s=st.sampled_from([0.0, 15.0, 30.0, 60.0]), downscale_sustained_s=st.sampled_from([0.0, 15.0, 60.0, 120.0]),
  interval_s=st.just(15.0), partitions_min=st.integers(1,3), partitions_max=st.integers(3,20))

@given(st.integers(0, 2**32), st.lists(S, min_size=1, max_size=6), st.integers(1,8))
def test_k(seed, settings, initial):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(np.repeat(rng.choice([0, 5, 20, 50, 100, 300, 1000], (3, 20)), 12, axis=1))
    model = Model(bucket_s=5.0, partition_rps=12.0, wait_s_max=1.0, initial=initial)
    r = replay(counts, settings, model, is_traced=True)
    n = 0
    for i in range(3):
        for j, s in enumerate(settings):
            got = list(zip(r.write[:, i, j].tolist(), r.read[:, i, j].tolist()))
            assert got == live(counts[i], s, model, initial)
