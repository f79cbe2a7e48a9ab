"""Each kernel against its lines of torch: on a simulated GPU, and on a real one."""

import random
from contextlib import nullcontext

import pytest
import torch

from minisgl.kernel import fast_compare_key, indexing, store_cache
from minisgl.kernel import index as index_module
from minisgl.kernel import store as store_module
from minisgl.kernel.index import indexing_torch
from minisgl.kernel.radix import fast_compare_key_torch
from minisgl.kernel.store import store_cache_torch
from minisgl.kernel.utils import simulated_kernels
from tests.driver import Driver
from tests.parity import model_under_test, prompts

# (kv heads, head_dim, dtype): rows of 512, 2048, 384, 4, 6 and 15 bytes.
ROWS = [
    (2, 64, torch.float32),
    (8, 128, torch.bfloat16),
    (2, 48, torch.float32),
    (1, 2, torch.float16),
    (1, 3, torch.bfloat16),
    (3, 5, torch.uint8),
]
# (dim, dtype): up to 2 KiB a warp, then 2 and 8 warps a row.
TABLES = [
    (64, torch.float32),
    (1024, torch.bfloat16),
    (2048, torch.bfloat16),
    (4096, torch.float32),
    (5, torch.float16),
]
GUARD = 77
DEVICES = ["simulator", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request):
    """Where tensors go; on the CPU kernels are simulated."""
    simulated = request.param == "simulator"
    with simulated_kernels() if simulated else nullcontext():
        yield torch.device("cpu" if simulated else "cuda")


@pytest.fixture
def launches(monkeypatch):
    """Counts the kernels that ran, by name; fails if torch did their work."""
    count = {"store": 0, "index": 0}
    for module in (store_module, index_module):

        def checked(name, status, was=module.check_launch):
            count[name] += 1
            was(name, status)

        monkeypatch.setattr(module, "check_launch", checked)
    return count


def draw(shape, dtype, device="cpu"):
    if dtype == torch.uint8:
        return torch.randint(0, 255, shape, dtype=dtype, device=device)
    return torch.randn(shape, device=device).to(dtype)


def guarded(shape, dtype, device):
    """A tensor of GUARD between two stretches of GUARD, and the whole."""
    size = torch.Size(shape).numel()
    whole = torch.full((size + 128,), GUARD, dtype=dtype, device=device)
    return whole[64:-64].view(shape), whole


# -- store -------------------------------------------------------------------


def make_store(heads, dim, dtype, tokens, slots, index, device):
    """Caches with a guard around, k and v as parts of one product, indices."""
    caches = [guarded((slots, heads, dim), dtype, device) for _ in range(2)]
    row = heads * dim
    qkv = draw((tokens, 4 * row), dtype, device)
    k, v = qkv[:, 2 * row : 3 * row], qkv[:, 3 * row :]
    chosen = torch.randperm(slots)[:tokens]
    return caches, k, v, chosen.to(index).to(device)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("heads, dim, dtype", ROWS)
def test_store_is_what_torch_does(device, launches, heads, dim, dtype, index):
    for tokens in (1, 3, 4, 5, 33, 70):
        caches, k, v, slots = make_store(
            heads, dim, dtype, tokens, 90, index, device
        )
        (to_k, whole_k), (to_v, whole_v) = caches
        wanted_k, wanted_v = to_k.clone(), to_v.clone()
        store_cache_torch(wanted_k, wanted_v, slots, k, v)
        store_cache(to_k, to_v, slots, k, v)
        # Slots that are not named keep the guard's value in both.
        assert torch.equal(to_k, wanted_k) and torch.equal(to_v, wanted_v)
        for whole in (whole_k, whole_v):
            assert (whole[:64] == GUARD).all() and (whole[-64:] == GUARD).all()
    assert launches["store"] == 6


def test_store_into_a_layer_of_a_pool_of_many(device, launches):
    pool = torch.zeros(2, 3, 40, 2, 64, device=device)
    k, v = torch.randn(2, 10, 128, device=device)
    slots = torch.randperm(40, device=device)[:10].int()
    store_cache(*pool[:, 1], slots, k, v)
    wanted = torch.zeros_like(pool)
    store_cache_torch(*wanted[:, 1], slots, k, v)
    assert torch.equal(pool, wanted) and launches["store"] == 1


def test_slots_that_are_not_there_are_not_written(device):
    (to_k, whole_k), (to_v, whole_v) = (
        guarded((8, 2, 64), torch.float32, device) for _ in range(2)
    )
    slots = torch.tensor([-1, 3, 8, 2**30, -(2**31)], dtype=torch.int32)
    k, v = torch.randn(2, 5, 128, device=device)
    store_cache(to_k, to_v, slots.to(device), k, v)
    for whole, inner, row in ((whole_k, to_k, k), (whole_v, to_v, v)):
        assert torch.equal(inner[3].flatten(), row[1])
        assert (whole == GUARD).sum() == whole.numel() - 128


def test_rows_for_one_slot_mix_and_touch_nothing_else(device):
    to_k, to_v = torch.zeros(2, 4, 2, 64, device=device)
    k, v = torch.randn(2, 6, 128, device=device)
    slots = torch.tensor([1, 1, 1, 2, 1, 1], dtype=torch.int32, device=device)
    store_cache(to_k, to_v, slots, k, v)
    for cache, rows in ((to_k, k), (to_v, v)):
        # Each element is one of those that were meant for its place.
        given = rows[[0, 1, 2, 4, 5]]
        assert (given == cache[1].flatten()).any(0).all()
        assert torch.equal(cache[2].flatten(), rows[3])
        assert not cache[0].any() and not cache[3].any()


def test_no_token_is_no_launch(device, launches):
    to_k, to_v = torch.zeros(2, 4, 2, 64, device=device)
    nothing = torch.empty(0, 128, device=device)
    slots = torch.empty(0, dtype=torch.int32, device=device)
    store_cache(to_k, to_v, slots, nothing, nothing)
    assert not to_k.any() and launches["store"] == 0


def wrong_stores():
    """What a store must refuse: name -> (change to good arguments, message)."""
    return {
        "short": (lambda a: a | {"k": a["k"][:, :64]}, "do not fit"),
        "few": (lambda a: a | {"v": a["v"][:3]}, "4 keys and 3 values"),
        "many": (lambda a: a | {"slots": a["slots"].repeat(2)}, "for 8 slots"),
        "dtype": (lambda a: a | {"k": a["k"].int()}, "one dtype"),
        "gaps": (lambda a: a | {"k": a["k"].repeat(1, 2)[:, ::2]}, "has gaps"),
        "spread": (lambda a: a | {"slots": a["slots"].repeat(2)[::2]}, "gaps"),
        "caches": (lambda a: a | {"to_v": a["to_v"][:7]}, "differ"),
    }


@pytest.mark.parametrize("kind", wrong_stores())
def test_what_does_not_fit_is_refused_before_a_launch(device, kind):
    to_k, to_v = torch.zeros(2, 8, 2, 64, device=device)
    k, v = torch.randn(2, 4, 128, device=device)
    slots = torch.arange(4, dtype=torch.int32, device=device)
    good = {"to_k": to_k, "to_v": to_v, "slots": slots, "k": k, "v": v}
    change, message = wrong_stores()[kind]
    with pytest.raises(ValueError, match=message):
        store_cache(*change(good).values())
    assert not to_k.any() and not to_v.any()


def test_indices_of_another_dtype_are_refused(device):
    to_k, to_v = torch.zeros(2, 8, 2, 64, device=device)
    k, v = torch.randn(2, 4, 128, device=device)
    slots = torch.arange(4, dtype=torch.int16, device=device)
    with pytest.raises(TypeError, match=r"int32 or int64, not torch\.int16"):
        store_cache(to_k, to_v, slots, k, v)
    with pytest.raises(TypeError, match="int32 or int64"):
        indexing(torch.zeros(9, 4, device=device), slots)


# -- index ---------------------------------------------------------------------


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dim, dtype", TABLES)
def test_index_is_what_torch_does(device, launches, dim, dtype, index):
    table = draw((50, dim), dtype, device)
    for tokens in (1, 4, 5, 67):
        ids = torch.randint(0, 50, (tokens,), device=device).to(index)
        assert torch.equal(indexing(table, ids), indexing_torch(table, ids))
    assert launches["index"] == 4


def test_index_of_a_table_with_gaps_between_rows(device):
    table = torch.randn(20, 256, device=device)[:, 64:128]
    ids = torch.randint(0, 20, (9,), dtype=torch.int32, device=device)
    assert torch.equal(indexing(table, ids), table[ids.long()])


@pytest.mark.parametrize("dim, dtype", [TABLES[0], TABLES[2]])
def test_parts_of_a_table_add_up_to_the_whole(device, dim, dtype):
    table = draw((50, dim), dtype, device)
    ids = torch.randint(0, 50, (33,), dtype=torch.int32, device=device)
    total = 0
    for first, last in ((0, 17), (17, 34), (34, 50)):
        where = {"vocab_range": (first, last)}
        part = indexing(table[first:last], ids, **where)
        mine = (ids >= first) & (ids < last)
        assert torch.equal(part[mine], table[ids[mine].long()])
        assert not part[~mine].any()
        assert torch.equal(
            part, indexing_torch(table[first:last], ids, (first, last))
        )
        total = total + part
    assert torch.equal(total, table[ids.long()])


def test_no_row_of_another_id_leaks_in(device):
    nan = torch.full((4, 64), float("nan"), device=device)
    ids = torch.tensor([0, 3, 9, -1, 8], dtype=torch.int32, device=device)
    # Padding rows, as a vocabulary that does not divide has, are no ids either.
    for table, where in ((nan, (4, 8)), (nan, (10, 12))):
        part = indexing(table, ids, vocab_range=where)
        assert torch.equal(part, torch.zeros(5, 64, device=device))
        assert torch.equal(indexing_torch(table, ids, where), part)


def test_a_kernel_reads_no_row_that_is_not_there(device):
    inner, _ = guarded((6, 64), torch.float32, device)
    ids = torch.tensor([-1, 6, 2, 2**30], dtype=torch.int32, device=device)
    found = indexing(inner, ids)
    assert (found[2] == GUARD).all()
    assert not found[[0, 1, 3]].any()
    # A range that promises more rows than the table has does not help.
    found = indexing(inner, ids, vocab_range=(0, 100))
    assert not found[[0, 1, 3]].any()


def test_the_result_goes_where_it_is_wanted(device):
    table = torch.randn(20, 64, device=device)
    ids = torch.tensor([3, 3, 0], dtype=torch.int32, device=device)
    output, whole = guarded((3, 64), torch.float32, device)
    assert indexing(table, ids, output=output) is output
    assert torch.equal(output, table[ids.long()])
    assert (whole[:64] == GUARD).all() and (whole[-64:] == GUARD).all()
    # No multiple of 16 bytes: it takes smaller words.
    whole.fill_(GUARD)
    odd = whole[65 : 65 + 192].view(3, 64)
    assert torch.equal(indexing(table, ids, output=odd), table[ids.long()])
    assert (whole[:65] == GUARD).all() and (whole[-63:] == GUARD).all()


def test_a_lookup_that_does_not_fit_is_refused(device):
    table = torch.randn(20, 64, device=device)
    ids = torch.tensor([3, 3, 0], dtype=torch.int32, device=device)
    for shape in ((2, 64), (3, 32)):
        with pytest.raises(ValueError, match=r"output must be \[3, 64\]"):
            indexing(table, ids, output=torch.empty(shape, device=device))
    for wrong in (ids.repeat(2)[::2], ids.view(1, 3)):
        with pytest.raises(ValueError, match="indices"):
            indexing(table, wrong)


def test_without_a_kernel_torch_computes_and_knows_its_bounds(launches):
    table, ids = torch.randn(20, 8), torch.tensor([3, 19])
    output = torch.empty(2, 8)
    assert indexing(table, ids, output=output) is output
    assert torch.equal(output, table[ids])
    with pytest.raises(IndexError):
        indexing(table, torch.tensor([20]))
    caches, k, v, slots = make_store(*ROWS[0], 5, 9, torch.int32, "cpu")
    store_cache(caches[0][0], caches[1][0], slots, k, v)
    assert torch.equal(caches[0][0][slots].flatten(1), k)
    assert launches == {"store": 0, "index": 0}


# -- radix ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_keys_part_where_torch_says(dtype):
    rng = random.Random(0)
    for _ in range(300):
        x = torch.randint(0, 3, (rng.randrange(200),), dtype=dtype)
        y = torch.cat(
            [x, torch.randint(0, 3, (rng.randrange(70),), dtype=dtype)]
        )
        y = y[: rng.randrange(len(y) + 1)]
        if len(y):
            y[rng.randrange(len(y))] += rng.randrange(2)
        wanted = fast_compare_key_torch(x, y)
        assert fast_compare_key(x, y) == wanted == fast_compare_key(y, x)


@pytest.mark.parametrize("place", [0, 1, 62, 63, 64, 65, 127, 128, 199])
def test_one_token_that_differs_is_found_anywhere(place):
    x = torch.arange(200, dtype=torch.int32)
    y = x.clone()
    y[place] = -1
    assert fast_compare_key(x, y) == place
    assert fast_compare_key(x[:place], y) == place
    # A slice begins in the middle of its memory.
    if place > 1:
        assert fast_compare_key(x[1:], y[1:]) == place - 1


def test_tensors_that_are_no_keys_are_refused():
    x = torch.arange(10, dtype=torch.int32)
    for wrong in (x[::2], x.long()):
        with pytest.raises(ValueError, match="keys are"):
            fast_compare_key(x, wrong)
    with pytest.raises(TypeError, match=r"not torch\.int16"):
        fast_compare_key(x.to(torch.int16), x.to(torch.int16))


# -- the engine ------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 16])
def test_parity_through_the_kernels(launches, page_size):
    folder = model_under_test("qwen3-tiny")
    driver = Driver(folder, page_size=page_size, overlap=True)
    with simulated_kernels():
        for uid, ids in enumerate(prompts(folder)[:6]):
            driver.submit(uid, ids, max_tokens=12)
        # The first prompt again, and longer: a hit, found by the C++ comparison.
        driver.submit(6, prompts(folder)[5], max_tokens=12)
        driver.run()
    driver.assert_parity()
    driver.assert_every_page()
    layers = driver.scheduler.engine.ctx.kv_cache.num_layers
    steps = len(driver.steps)
    assert launches == {"store": layers * steps, "index": steps}


@pytest.mark.parity
@pytest.mark.parametrize("model", ["mistral-tiny", "qwen2-tiny"])
def test_parity_of_other_shapes(launches, model):
    folder = model_under_test(model)
    driver = Driver(folder, page_size=4, max_extend_tokens=20)
    with simulated_kernels():
        for uid, ids in enumerate(prompts(folder)[2:5]):
            driver.submit(uid, ids, max_tokens=8)
        driver.run()
    driver.assert_parity()
    assert launches["store"] > 0
