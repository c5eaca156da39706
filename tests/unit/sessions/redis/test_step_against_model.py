"""The scripts and the model: one SessionState and one session in Redis take the same transitions."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import STEP
from tests.unit.sessions.moves import EVERY, Drawn, Seeded
from tests.unit.sessions.pair import Pair, play, play_scenes, play_turns


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), moves=st.integers(1, 30))
def test_the_scripts_do_what_the_model_does(server_link: RedisLink, data: st.DataObject, moves: int) -> None:
    with closing(Pair(server_link)) as pair:
        play(pair, Drawn(data), moves)


def test_everything_has_happened_and_the_scripts_did_what_the_model_does(
    link: RedisLink, histories: range
) -> None:
    counts: Counter[str] = Counter()

    for seed in histories:
        with closing(Pair(link, counts)) as pair:
            play(pair, Seeded(seed), 40)
    play_scenes(link, counts=counts)

    assert [name for name in EVERY if not counts[name]] == []


def test_the_everyday_transition_does_what_the_model_does(link: RedisLink, histories: range) -> None:
    for seed in histories:
        with closing(Pair(link, queue="default")) as pair:
            play_turns(pair, Seeded(seed), 30)


# --- broken on purpose ------------------------------------------------------------------


BROKEN = {
    # replays and refusals
    "the last request is not answered again": (
        "if last and sub(last, -#request) == request then",
        "if false then",
    ),
    "another try is not answered": ("match(nonce, '_.*')", "nonce"),
    "another try is not named": ("if last ~= nonce then tail = tail .. '\\31nonce\\31' .. last end", ""),
    "a replay hands out what is held no more": ("== token then reply[", "~= '' then reply["),
    "a replay forgets its claims": (
        "string.gmatch(keys, '[^,]+') do\n      local rec",
        "string.gmatch('', '[^,]+') do\n      local rec",
    ),
    "a request follows anything": (
        "if not before or find(before, prev, 1, true) ~= 1 then",
        "if not before then",
    ),
    "a request from outside follows anything": ("if (last or '') ~= prev then return {'lost'} end", ""),
    "any claim may be ended": (
        "if not rec or sub(rec, 1, #want) ~= want then return {'void'} end",
        "if not rec then return {'void'} end",
    ),
    "any base will do": ("elseif version and version ~= base then", "elseif false then"),
    "a base of another history will do": (
        "elseif version and version ~= base then",
        "elseif version and match(version, '^%d+') ~= match(base, '^%d+') then",
    ),
    "what was read may have changed": ("if (version or '0') ~= sub(base, 2) then", "if false then"),
    "a value that is not there conflicts": (
        "elseif version and version ~= base",
        "elseif version ~= base",
    ),
    # counters
    "no transition is counted": ("tonumber(sequence) + 1", "tonumber(sequence)"),
    "a completion is no step": ("    steps = steps + 1\n", ""),
    "a key is given twice": ("  key = key + 1\n", ""),
    "a claim's number is given twice": ("        claim = claim + 1\n", ""),
    "an order is given twice": (", spec)\n    order = order + 1\n", ", spec)\n"),
    # ends
    "a completed claim is kept": (
        "    drop(k)\n    leave_loops(k)\n",
        "    leave_loops(k)\n",
    ),
    "completions have no order": (
        "    call('ZADD', P .. 'done', steps, task)\n    leave(name)",
        "    call('ZADD', P .. 'done', 0, task)\n    leave(name)",
    ),
    "a result has an old version": (
        "ARGV[i + 2], '#' .. name, version)\n    if lists",
        "ARGV[i + 2], '#' .. name, sequence - 1 .. '_' .. nonce)\n    if lists",
    ),
    "a result keeps what was appended": (
        "'#' .. name, version)\n    if lists then call('DEL', P .. 'a:' .. name) end",
        "'#' .. name, version)",
    ),
    "a completion leaves its error": (
        "call('HDEL', P .. 'er', task) + call('HDEL', P .. 'sk', task)",
        "call('HDEL', P .. 'sk', task)",
    ),
    "a completion leaves its skip": (
        "call('HDEL', P .. 'er', task) + call('HDEL', P .. 'sk', task)",
        "call('HDEL', P .. 'er', task)",
    ),
    "a retry is not counted": ("f[4], f[8] = f[4] + 1, '0'", "f[8] = '0'"),
    "a retry leaves no error": ("      call('HSET', P .. 'er', task, 'r' .. err)\n", ""),
    "a retry is noted for good": ("'er', task, 'r' .. err)", "'er', task, 'f' .. err)"),
    "a retry does not wait": ("if tonumber(ARGV[i + 3]) > now() then", "if false then"),
    "a retry forgets when": (
        "        f[8] = ARGV[i + 3]\n",
        "        f[8] = tostring(tonumber(ARGV[i + 3]) + 1)\n",
    ),
    "a failure is not set aside": ("      if how == 'failed' then dead(", "      if how == 'f' then dead("),
    "a failure of old still passes": ("      call('HDEL', P .. 'pa', task)\n      if how", "      if how"),
    "a failure is forgotten": ("      call('HSET', P .. 'er', task, 'f' .. err)\n", ""),
    "a skip is forgotten": ("      if how == 'skipped' then", "      if how == 's' then"),
    "a group is not through": ("'passed' then", "'p' then"),
    "what was to be retried and is not, is not told": ("      if f[4] ~= '0' then give_up(task) end\n", ""),
    # rounds
    "a round is forgotten": ("    call('HSET', P .. 'r', k, ARGV[i + 2] .. '\\30' .. names)\n", ""),
    "a round forgets what was kept before": (
        "local names = match(call('HGET', P .. 'r', ARGV[i + 1]) or '\\30', '^[^\\30]*\\30(.*)$')",
        "local names = ''",
    ),
    "what is kept is noted twice": ("do had[name] = true end", "do had[name] = nil end"),
    "a round leaves its retries": ("      f[4], f[10] = '0', '0'\n", "      f[10] = '0'\n"),
    "a round leaves its crashes": ("      f[4], f[10] = '0', '0'\n", "      f[4] = '0'\n"),
    "a round leaves the claim as it was": (
        "      call('HSET', C, k, match(call('HGET', C, k), '^[^\\31]*\\31[^\\31]*\\31') .. recs[k])\n",
        "",
    ),
    "a round leaves its error": ("      if f[4] ~= '0' then call('HDEL', P .. 'er', f[2]) end\n", ""),
    "a claim does not say where its loops are": ("shown(k, rec), k", "rec, k"),
    "what is answered again does not say where its loops are": ("= shown(k, rec) end", "= rec end"),
    "loops outlive their task": (
        "    leave_loops(k)\n    call('ZADD', P .. 'done'",
        "    call('ZADD', P .. 'done'",
    ),
    "loops outlive what was lost": ("else leave_loops(k) end", "end"),
    "loops outlive what was dropped": (
        "      leave_loops(k)\n      if how == 'skipped'",
        "      if how == 'skipped'",
    ),
    "what loops keep outlives them": (
        "    call('HDEL', V, '=' .. name, '#' .. name)\n    if lists",
        "    if lists",
    ),
    "what loops keep leaves its list": (
        "    if lists then call('DEL', P .. 'a:' .. name) end\n  end\n  call('HDEL', P .. 'r', k)",
        "  end\n  call('HDEL', P .. 'r', k)",
    ),
    "loops of claims outlive what runs again": (
        "        drop(k)\n        leave_loops(k)\n",
        "        drop(k)\n",
    ),
    "loops of ready specs outlive what runs again": ("          leave_loops(match(spec, '^[^\\31]*'))\n", ""),
    "loops outlive what was scheduled": (
        "    if call('HEXISTS', C, k) + call('HEXISTS', P .. 'dead', k) == 0 then leave_loops(k) end\n",
        "",
    ),
    # claims
    "a paused session hands out": (
        "    if status == 'running' then\n      if find(flags, 'd'",
        "    if status ~= '' then\n      if find(flags, 'd'",
    ),
    "the cap is not looked at": ("limit = math.min(limit, tonumber(cap) - held)", "limit = limit"),
    "the cap is one too large": ("tonumber(cap) - held)", "tonumber(cap) + 1 - held)"),
    "max_steps does not count what runs": (
        "left = tonumber(max_steps) - steps - held",
        "left = tonumber(max_steps) - steps",
    ),
    "max_steps counts what has no body": ("if left and find(spec, DIRECT) then", "if left then"),
    "max_steps takes the order away": (
        "call('ZADD', from, head[2], spec)",
        "call('ZADD', from, head[2] + 1, spec)",
    ),
    "nothing that is due comes back": ("      if find(flags, 'd', 1, true) then promote() end\n", ""),
    "what is due keeps its time": ("    item[2][8] = '0'\n", ""),
    "what is due comes in any order": (
        "if a[1] ~= b[1] then return a[1] < b[1] end",
        "if a[1] ~= b[1] then return a[1] > b[1] end",
    ),
    "what is due at once comes in any order": (
        "return tonumber(a[2][1]) < tonumber(b[2][1])",
        "return tonumber(a[2][1]) > tonumber(b[2][1])",
    ),
    "the first queue is taken": ("tonumber(head[2]) < score)", "false)"),
    "priorities are not looked at": ("at - tonumber(f[3]) * 8589934592", "at"),
    "new specs have no priority": ("queue, order - priority * 8589934592", "queue, order"),
    # specs
    "a spec's data ends at a separator": ("f[11] = sub(spec, n)", "f[11] = match(spec, '^[^\\31]*', n)"),
    "what has no body is a visit": ("if how == 'direct' then\n", "if true then\n"),
    "cycles are not counted": (
        "    cycle = call('HINCRBY', P .. 'n', task, 1) - 1",
        "    cycle = call('HINCRBY', P .. 'n', task, 1)",
    ),
    "a new queue is not known": ("  if queue ~= queues then known(queue) end\n", ""),
    "a delayed spec is ready": (
        "    delay(due, spec)\n",
        "    call('ZADD', P .. 'q:' .. queue, order, spec)\n",
    ),
    # joins
    "a join counts no arrivals": ("arrived + 1, oks + ARGV[i + 2]", "tonumber(arrived), oks + ARGV[i + 2]"),
    "a join counts no successes": ("arrived + 1, oks + ARGV[i + 2]", "arrived + 1, oks + 0"),
    "a join takes the size of each edge": (
        "if g then size, need, arrived, oks, fired, toward =",
        "if g then _, _, arrived, oks, fired, toward =",
    ),
    "a join fires twice": ("      fired = '1'\n", ""),
    "enough is not enough": ("(need > 0 and need <= oks)", "false"),
    "one more is needed": ("need > 0 and need <= oks", "need > 0 and need < oks"),
    "nothing but failures runs the join": (
        "elseif need == 0 and oks == 0 then how = 'skip' elseif",
        "elseif",
    ),
    "a join that is jumped past is skipped": ("if toward ~= '' and oks <", "if false and oks <"),
    "enough others do not count beside a jump": ("oks < math.max(1, need)", "oks < math.max(99, need)"),
    "a jump is forgotten at the next arrival": ("oks .. ' ' .. fired .. toward)", "oks .. ' ' .. fired)"),
    "two branches that jump to one task run it twice": (
        "if not find(g .. '\\30', to .. '\\30', 1, true) then g = g .. to end",
        "g = g .. to",
    ),
    "too few successes run the join": ("elseif oks < need then how = 'lost' end", "end"),
    "a join stays when all have come": ("      call('HDEL', P .. 'g', task)\n    else", "    else"),
    "no join waits for more": ("(size + ARGV[i + 2]) .. rest)", "size .. rest)"),
    "a new join has the size of what it waits for": (
        "local size, rest = ARGV[i + 3], ' ' ..",
        "local size, rest = ARGV[i + 2], ' ' ..",
    ),
    # values
    "a put keeps what was appended": ("    if lists then call('DEL', P .. 'a:' .. ARGV[i + 1]) end\n", ""),
    "a put keeps its version": ("ARGV[i + 2], '#' .. ARGV[i + 1], version)", "ARGV[i + 2])"),
    "the first append takes the value away": (
        "call('HSETNX', V, '=' .. name, '\\144')",
        "call('HSET', V, '=' .. name, '\\144')",
    ),
    "an append has no version": (
        "    call('HSET', V, '#' .. name, version)\n",
        "    call('HSETNX', V, '#' .. name, version)\n",
    ),
    "what is appended comes first": ("call('RPUSH', P .. 'a:'", "call('LPUSH', P .. 'a:'"),
    "lists are not noted": ("if not lists then lists, flags = true, flags .. 'a' end", ""),
    "marks are not noted": ("if not marks then marks, flags = true, flags .. 'm' end", ""),
    # the session
    "a cut off task is not noted": ("    mark()\n    call('HSET', P .. 'sk', ARGV[i + 1], steps)\n", ""),
    "any status follows from any": ("    if changes then status,", "    if true then status,"),
    "a reason is forgotten": ("status, reason = to, ARGV[i + 2]", "status = to"),
    "a status that ended is changed": (
        "status == 'paused'\n      or",
        "status == 'paused' or status == 'failed'\n      or",
    ),
    "a completed session is cancelled": (" and status ~= 'completed')", ")"),
    "a cancelled session is reopened": ("op == 'o' and status == 'cancelled'", "op == 'o' and false"),
    "cancelling takes a running session": (
        "\n      or (to == 'cancelled' and status ~= 'completed')",
        "",
    ),
    "no cap is kept": ("    cap = ARGV[i + 1]\n", ""),
    "random state is forgotten": ("    call('HSET', P .. 'h', 'rng', ARGV[i + 1])\n", ""),
    "made tasks are forgotten": ("    call('HSET', P .. 't', ARGV[i + 1], ARGV[i + 2])\n", ""),
    # nothing runs
    "nothing ever ends": ("if #out == had and held == 0 then settle() end", ""),
    "an end comes while something runs": ("if #out == had and held == 0 then", "if #out == had then"),
    "closing leaves what is scheduled": (
        "    unschedule()\n    status = 'completed'",
        "    status = 'completed'",
    ),
    "failing does not fail": ("    status = 'failed'\n", ""),
    "max_steps does not stop": ("      status, reason = 'stopped', ", "      reason = "),
    "what was set aside does not count as left": (" and call('HLEN', P .. 'dead') == 0", ""),
    "what is delayed does not count as left": (
        "ready_in(queues) == 0 and call('ZCARD', P .. 'dl') == 0",
        "ready_in(queues) == 0",
    ),
    "nothing stalls": ("#names > 0 and 'stalled' or 'completed'", "'completed'"),
    "fired gates stall": ("if match(all[n + 1], '^%S+ %S+ %S+ %S+ 0') then", "if true then"),
    "waiting gates are in no order": (
        "  table.sort(names)\n",
        "  table.sort(names, function(a, b) return a > b end)\n",
    ),
    # repairs
    "reopening forgets the epoch": ("    call('HSET', P .. 'h', 'epoch', ARGV[i + 1])\n", ""),
    "reopening forgets the limit": ("    max_steps = ARGV[i + 2]\n", ""),
    "a closing session is started again": ("if status == 'closing' and specs > 0 then", "if false then"),
    "a completed session runs although nothing is left": (
        "if status ~= 'completed' or queued > 0 then",
        "if true then",
    ),
    "what was set aside stays there": ("      call('DEL', P .. 'dead')\n", ""),
    "what was set aside keeps its retries": (
        "item[2][4], item[2][8], item[2][10] = '0', '0', '0'",
        "item[2][8], item[2][10] = '0', '0'",
    ),
    "what was set aside keeps its crashes": (
        "item[2][4], item[2][8], item[2][10] = '0', '0', '0'",
        "item[2][4], item[2][8] = '0', '0'",
    ),
    "what was set aside comes back in any order": (
        "function(a, b) return a[1] < b[1] end",
        "function(a, b) return a[1] > b[1] end",
    ),
    "a released spec comes last": ("push(f, -order)", "push(f, order)"),
    "crashes are not counted": ("      f[10] = ARGV[i + 2]\n", ""),
    "nothing is in doubt": ("      if op == 'd' then f[6] = 'doubt' end\n", ""),
    "an answered spec comes last": ("push(f, 0 - order)", "push(f, order)"),
    "an answer is not taken": ("      f[6] = ARGV[i + 2]\n", ""),
    "an answered spec is held as well": ("$')\n      drop(k)\n", "$')\n"),
    "an answered spec is set aside as well": ("      call('HDEL', P .. 'dead', k)\n", ""),
    "an answered spec has failed": ("      call('HDEL', P .. 'er', f[2])\n", ""),
    "a failed group is lost again": ("if item[2][6] == 'lost' then item[2][6] = 'again' elseif", "if"),
    "what was given up is given up again": (
        "item[2][6] == 'failed' then item[2][6] = 'direct'",
        "false then",
    ),
    "a quarantine goes on": ("status, reason = 'paused', ARGV[i + 2]", "reason = ARGV[i + 2]"),
    "a quarantined claim is kept": ("      mark()\n      drop(ARGV[i + 1])\n", "      mark()\n"),
    "a quarantine leaves no error": (
        "      call('HSET', P .. 'er', fields(spec)[2], 'f' .. ARGV[i + 2])\n",
        "",
    ),
    "what runs again is completed": ("      call('ZREM', P .. 'done', task)\n", ""),
    "what runs again is through": (
        "      call('HDEL', P .. 'pa', task)\n      call('HDEL', P .. 'sk', task)\n",
        "      call('HDEL', P .. 'sk', task)\n",
    ),
    "what runs again is skipped": (
        "      call('HDEL', P .. 'sk', task)\n      call('HDEL', P .. 'g', task)\n",
        "      call('HDEL', P .. 'g', task)\n",
    ),
    "what runs again has a gate": (
        "      call('HDEL', P .. 'g', task)\n      leave(name)",
        "      leave(name)",
    ),
    "what runs again has a result": ("      call('HDEL', V, '=' .. name, '#' .. name)\n", ""),
    "what runs again has a list": ("      call('DEL', P .. 'a:' .. name)\n    end", "    end"),
    "what runs again is ready": ("do thin(P .. 'q:' .. name) end", "do end"),
    "what runs again is delayed": ("    thin(P .. 'dl')\n", ""),
    "what runs again was only retried": ("      give_up(task)\n      call('ZREM'", "      call('ZREM'"),
    "nothing comes too late": ("ARGV[i + 2] .. ' 0 0 0 1')", "ARGV[i + 2] .. ' 0 0 0 0')"),
    "clearing leaves claims": ("    for k in pairs(claims()) do drop(k) end\n", ""),
    "clearing leaves what was set aside": (
        "    call('DEL', P .. 'dead')\n    unschedule()\n",
        "    unschedule()\n",
    ),
    "clearing leaves what is ready": ("do call('DEL', P .. 'q:' .. name) end\n", "do end\n"),
    "clearing leaves what is delayed": ("call('DEL', P .. 'dl', P .. 'g')", "call('DEL', P .. 'g')"),
    "clearing leaves gates": ("call('DEL', P .. 'dl', P .. 'g')", "call('DEL', P .. 'dl')"),
    "an error ends at a separator": (
        "return sub(rec, from + tonumber(size))",
        "return sub(rec, (find(rec, '\\30', from, true) or from - 1) + 1)",
    ),
    # the everyday transition
    "a turn ends any claim": ("if rec and sub(rec, 1, #own) == own then", "if rec then"),
    "a turn is taken in a session that waits": ("status == 'running' and not outside", "not outside"),
    "a turn does not look at marks": ("(flags == 'f' or flags == '')", "flags ~= 'e'"),
    "a turn does not look at the cap": (" and cap == '' and max_steps == ''", " and max_steps == ''"),
    "a turn does not look at max_steps": (" and cap == '' and max_steps == ''", " and cap == ''"),
    "in full a turn loses its successor": ("ipairs(task and {'N'", "ipairs(false and {'N'"),
    "in full a turn claims nothing": ("ipairs({'C', 1, queue})", "ipairs({'C', 0, queue})"),
    "a turn does not count cycles": (
        "local cycle = count('%d', call('HINCRBY', P .. 'n', task, 1) - 1)",
        "local cycle = 0",
    ),
    "a turn has no priorities": (
        "call('ZADD', ready, order - priority * 8589934592",
        "call('ZADD', ready, order",
    ),
    "a turn loses retries": ("          .. ARGV[12] .. '\\31direct", "          .. '0\\31direct"),
    "a turn gives a key twice": ("key, order = count('%d', key + 1),", "key, order = key,"),
    "a turn gives an order twice": ("count('%d', key + 1), count('%d', order + 1)", "count('%d', key + 1)"),
    "a turn is no transition": ("claim, steps = count('%d', sequence + 1),", "claim, steps = sequence,"),
    "a turn is no step": (", count('%d', steps + 1)\n", ", steps\n"),
    "a turn keeps the claim": ("        call('HDEL', C, k)\n        call('ZADD'", "        call('ZADD'"),
    "a turn gives a claim to nobody": (".. k2, k2, took)\n", ".. k2)\n"),
    "a turn has no completions": (
        "        call('ZADD', P .. 'done', steps, ended)\n        call('HSET', V",
        "        call('HSET', V",
    ),
    "a turn has no result": ("'=' .. name, ARGV[9], '#' .. name, sequence", "'#' .. name, sequence"),
    "a turn gives a claim's number twice": ("1), count('%d', claim + 1),", "1), claim,"),
    "a turn is not answered again": ("token, nonce .. '\\30\\30' .. k2, k2", "token, '0\\30\\30' .. k2, k2"),
    "a turn's claim is not answered again": ("nonce .. '\\30\\30' .. k2, k2", "nonce .. '\\30\\30', k2"),
    "what runs again is claimed": ("        drop(k)\n        leave_loops(k)\n", "        leave_loops(k)\n"),
    "what runs again is set aside": ("        call('HDEL', P .. 'dead', all[n])\n", ""),
    "loops of what was set aside outlive what runs again": ("        leave_loops(all[n])\n", ""),
    "claims are miscounted": ("held = held - call('HDEL', C, k)", "call('HDEL', C, k)"),
    "what is handed out is not counted": ("        held = held + 1\n", ""),
    "somebody else's claim is given back": (
        "return (holder == (reaped or token) or (outside and not reaped)) and rec",
        "return rec",
    ),
    "what is delayed is not noted": ("flags = flags .. 'd' end", "end"),
    "marks are forgotten while there are some": (
        "if less > 0 and call('HLEN', P .. 'er') + call('HLEN', P .. 'sk') == 0 then",
        "if less > 0 then",
    ),
    "skips are forgotten while there are some": (
        "call('HLEN', P .. 'er') + call('HLEN', P .. 'sk') == 0",
        "call('HLEN', P .. 'er') == 0",
    ),
}


HISTORIES = 600


@pytest.mark.parametrize("name", BROKEN)
def test_each_break_is_seen(name: str, server_link: RedisLink) -> None:
    old, new = BROKEN[name]
    assert STEP.count(old) == 1, "it is to be broken in one place"

    assert any(convicted(server_link, STEP.replace(old, new), seed) for seed in range(HISTORIES))


def test_nothing_is_seen_where_nothing_is_broken(server_link: RedisLink) -> None:
    assert not any(convicted(server_link, STEP + "-- as it is", seed) for seed in range(HISTORIES))


def convicted(link: RedisLink, step: str, seed: int) -> bool:
    try:
        if seed == 0:
            play_scenes(link, step)
        elif seed % 2:
            with closing(Pair(link, step=step, queue="default")) as pair:
                play_turns(pair, Seeded(seed), 40)
        else:
            with closing(Pair(link, step=step)) as pair:
                play(pair, Seeded(seed), 40)
    except (AssertionError, GraflowError, ValueError, KeyError, TypeError, IndexError):
        return True
    except pytest.fail.Exception:  # something should have been refused
        return True
    return False
