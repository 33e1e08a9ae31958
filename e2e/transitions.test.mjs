// Calls while replicas, connections and registrations come and go.
import assert from 'node:assert/strict';
import { ask, call, drop, fresh, gate, LONG, noFailure, online, sleep, suite, tally, vanish, waitFor } from './harness.mjs';

// A shorter wait for late acks than the default, since these tests lose acks on purpose and wait for what follows;
// yet longer than the rest of the handler in S1.1.
const lateAck = 6000;
const { scenario } = suite({ flags: { 'late-ack': `${lateAck}ms` } });

scenario('S1.1 a replica is killed 1 s into a 5 s handler: the caller gets the handler\'s own result', async (x) => {
  const daemon = await x.daemon(0, x.user, { slow: async (p) => { await sleep(5000); return `done ${p}`; } });
  const caller = await x.caller(1, x.user);
  const running = call(caller, 'slow', 1);
  await waitFor('the handler runs', () => daemon.requests.length);
  await sleep(1000);
  await x.cluster.replicas[0].kill();
  const answer = await running;
  assert.equal(answer.result, 'done 1', JSON.stringify(answer));
  assert.ok(answer.ms < 6500, `${answer.ms} ms for a handler of 5 s`);
  assert.equal(daemon.requests.length, 1);
});

scenario('S1.2 the next call succeeds as soon as the daemon is back from a killed replica', async (x) => {
  const daemon = await x.daemon(0, x.user, { echo: (p) => p });
  const callers = [await x.caller(1, x.user), await x.caller(1, x.user)];
  await x.cluster.replicas[0].kill();
  const killed = performance.now();
  // One at once, before anyone can know; one at the moment the daemon is back.
  const early = call(callers[0], 'echo', 'early');
  await waitFor('the daemon is back', () => daemon.ends.length && daemon.connected);
  noFailure([await call(callers[1], 'echo', 1)]);
  assert.ok(performance.now() - killed < 3000);
  const answer = await early;
  // That request may have reached the dying replica, and then nobody can know whether it ran.
  assert.ok(answer.ok || answer.code === 'RPC_TARGET_LOST', JSON.stringify(answer));
  assert.ok(answer.ms < lateAck + 3000, `${answer.ms} ms`);
});

scenario('S1.3 five reconnects of a daemon under five callers: no call fails', async (x) => {
  const daemon = await x.daemon(0, x.user, { echo: (p) => p }, { replaySafe: true });
  const callers = await Promise.all([0, 1, 0, 1, 0].map((i) => x.caller(i, x.user)));
  const loops = callers.map((c) => x.loop(async (n) => {
    const answer = await call(c, 'echo', n);
    if (answer.ok) assert.equal(answer.result, n);
    return answer;
  }, { every: 50 }));
  for (let n = 1; n <= 5; n++) {
    await sleep(800);
    drop(daemon);
    await waitFor('the daemon has registered again', () => daemon.registrations === n + 1);
  }
  await sleep(800);
  noFailure((await Promise.all(loops.map((l) => l.stop()))).flat(), 250);
});

scenario('S1.4 a registration is taken over by another peer again and again: a constant observer never finds none', async (x) => {
  const peers = await Promise.all([0, 1].map((i) => x.daemon(i, x.user, {}, { peer: `peer-${i}` })));
  peers.forEach((d, i) => d.off('rpc-request').on('rpc-request', (_, ack) => ack(i)));
  assert.ok((await ask(peers[0], 'rpc-register', { method: 'm' })).ok);
  const observers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  const loops = observers.flatMap((c) => [1, 2].map(() => x.loop(() => call(c, 'm'))));
  for (let n = 1; n <= (LONG ? 2000 : 200); n++) {
    assert.ok((await ask(peers[n % 2], 'rpc-register', { method: 'm' })).ok);
    // The replica that acknowledged it shows it; the other may still show the former holder, which is alive.
    assert.equal((await call(observers[n % 2], 'm')).result, n % 2);
    await waitFor('the other replica shows it', async () => (await call(observers[1 - (n % 2)], 'm')).result === n % 2, 1000);
  }
  for (const l of loops) noFailure(await l.stop(), 100);
});

scenario('S1.4 the former holder leaves as soon as it is replaced: the observer never meets a dead one', async (x) => {
  const observers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  let holder = await x.daemon(0, x.user, { m: () => 0 }, { replaySafe: true });
  const loops = observers.flatMap((c) => [1, 2].map(() => x.loop(() => call(c, 'm'))));
  for (let n = 1; n <= 20; n++) {
    const next = await x.daemon(n % 2, x.user, { m: () => n }, { replaySafe: true });
    if (n % 3) holder.disconnect(); else vanish(holder);
    holder = next;
    for (const c of observers) await waitFor('the new holder answers', async () => (await call(c, 'm')).result === n, 1000);
  }
  for (const l of loops) noFailure(await l.stop(), 50);
});

scenario('S1.5 a stale disconnect: the peer is back on the other replica before its old connection ends', async (x) => {
  const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  for (let n = 0; n < 8; n++) {
    const peer = fresh('peer');
    const old = await x.daemon(n % 2, x.user, { who: () => 'old' }, { peer });
    const told = new Promise((done) => old.on('peer-replaced', () => done(true)));
    const now = await x.daemon(1 - (n % 2), x.user, { who: () => 'new' }, { peer });
    // Every other time its own end crosses the server's; then it may not hear why.
    if (n % 4 > 1) old.disconnect(); else assert.ok(await told);
    await waitFor('the old connection is ended', () => !old.connected, 3000);
    for (let k = 0; k < 10; k++) for (const c of callers) assert.equal((await call(c, 'who')).result, 'new');
    assert.deepEqual(now.ends, []);
    now.close();
  }
});

scenario('S1.8 a killed replica\'s registrations are gone when nobody comes back', async (x) => {
  // The lease, and three looks at it; the lease was the grace of its daemons.
  const bound = 6000;
  const cluster = await x.alone();
  const methods = Array.from({ length: 10 }, (_, n) => `m${n}`);
  await Promise.all(methods.map((m) => cluster.clients.daemon(0, x.user, { [m]: () => 1 }, { reconnection: false })));
  const caller = await cluster.clients.caller(1, x.user);
  noFailure(await Promise.all(methods.map((m) => call(caller, m))));
  await cluster.replicas[0].kill();
  const killed = performance.now();
  const during = call(caller, methods[0]);
  await Promise.all(methods.map((m) => waitFor(`${m} is gone`, async () => (await call(caller, m, 0, { timeout: 200 })).code === 'RPC_NOT_AVAILABLE', bound)));
  assert.ok(performance.now() - killed < bound, `${performance.now() - killed} ms`);
  const answer = await during;
  // It may have been delivered, so it waits as long as the daemon may come back: --rpc-grace, 10 s, from the death.
  assert.equal(answer.code, 'RPC_TARGET_LOST', JSON.stringify(answer));
  assert.ok(answer.ms < 11500, `${answer.ms} ms`);
  for (const m of methods) {
    const then = await call(caller, m);
    assert.equal(then.code, 'RPC_NOT_AVAILABLE', JSON.stringify(then));
    assert.ok(then.ms < 500, `${then.ms} ms`);
  }
});

scenario('S1.13 a replica killed and started again under its name has missed no event', async (x) => {
  const [stays, restarts] = x.cluster.replicas;
  const a = await x.daemon(0, x.user, {}, { peer: 'a' });
  const b = await x.daemon(0, x.user, {}, { peer: 'b' });
  for (const d of [a, b]) d.off('rpc-request').on('rpc-request', (_, ack) => ack(d.peer));
  const register = async (d, method) => assert.ok((await ask(d, 'rpc-register', { method })).ok);
  for (let n = 0; n < 60; n++) await register(a, `m${n}`);
  await restarts.kill();
  for (let n = 0; n < 20; n++) await register(b, `m${n}`);
  for (let n = 20; n < 40; n++) assert.ok((await ask(a, 'rpc-unregister', { method: `m${n}` })).ok);
  for (let n = 60; n < 80; n++) await register(b, `m${n}`);
  await restarts.again();
  const caller = await x.caller(1, x.user);
  assert.equal(caller.at, 1);
  for (let n = 0; n < 80; n++) {
    const answer = await call(caller, `m${n}`);
    if (n >= 20 && n < 40) assert.equal(answer.code, 'RPC_NOT_AVAILABLE', `m${n}: ${JSON.stringify(answer)}`);
    else assert.equal(answer.result, n < 20 || n >= 60 ? 'b' : 'a', `m${n}: ${JSON.stringify(answer)}`);
  }
  assert.ok(stays.alive);
  assert.deepEqual([...a.ends, ...b.ends], []);
});

scenario('S1.13 all replicas killed and started again: what was registered is callable when the clients are back', async (x) => {
  const daemons = await Promise.all([0, 1].map((i) => x.daemon(i, x.user, { [`m${i}`]: (p) => p })));
  await Promise.all(x.cluster.replicas.map((r) => r.kill()));
  await x.cluster.whole();
  await waitFor('the daemons have registered again', () => daemons.every((d) => d.registrations === 2));
  for (const i of [0, 1]) {
    const caller = await x.caller(i, x.user);
    for (const m of ['m0', 'm1']) noFailure([await call(caller, m, 1)]);
  }
});

scenario('a replica that is stopped says so, its clients move, and no call fails', async (x) => {
  const daemon = await x.daemon(0, x.user, { echo: (p) => p }, { replaySafe: true });
  const notices = [];
  daemon.on('server-draining', (m) => notices.push(m));
  const caller = await x.caller(1, x.user);
  const calls = x.loop((n) => call(caller, 'echo', n));
  await waitFor('calls run', () => calls.results.length > 20);
  const end = await x.cluster.replicas[0].end();
  assert.deepEqual(end, { code: 0, signal: null });
  await waitFor('the daemon is on the other replica', () => daemon.connected && daemon.registrations === 2);
  const before = calls.results.length;
  await waitFor('calls go on', () => calls.results.length > before + 20);
  noFailure(await calls.stop());
  assert.equal(notices.length, 1);
  assert.ok(notices[0].reconnectWithinMs > 0, JSON.stringify(notices));
});

scenario('S1.20 a late ack that arrives by another replica completes its own call, and no other', async (x) => {
  let held = gate();
  const answers = async (p) => { await held.opened; return p; };
  const daemon = await x.daemon(0, x.user, { work: answers });
  const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  for (let round = 0; round < 4; round++) {
    held = gate();
    const came = daemon.requests.length;
    const ask8 = (what) => Array.from({ length: 8 }, (_, n) => ({ want: `${what}-${round}-${n}`, answer: call(callers[n % 2], 'work', `${what}-${round}-${n}`) }));
    const before = ask8('before');
    await waitFor('the first requests are in their handlers', () => daemon.requests.length === came + 8);
    const from = daemon.at;
    drop(daemon);
    await waitFor('the daemon is back', () => daemon.registrations === round + 2);
    assert.notEqual(daemon.at, from, 'on the other replica');
    const after = ask8('after');
    await waitFor('the later requests are in their handlers', () => daemon.requests.length === came + 16);
    held.open();
    for (const { want, answer } of [...before, ...after]) {
      const got = await answer;
      assert.equal(got.result, want, JSON.stringify(got));
    }
  }
});

scenario('S1.21 a handler that may not be repeated runs at most once for each call, whatever happens to its connection', async (x) => {
  const runs = new Map();
  const daemon = await x.daemon(0, x.user, { once: async (p) => { runs.set(p, (runs.get(p) ?? 0) + 1); await sleep(30); return p; } });
  const callers = await Promise.all([0, 1, 1].map((i) => x.caller(i, x.user)));
  let calls = 0;
  for (let round = 0; round < (LONG ? 8 : 1); round++) {
    const loops = callers.map((c) => x.loop(async () => {
      const n = ++calls;
      const answer = await call(c, 'once', n, n % 2 ? { id: fresh('id') } : {});
      if (answer.ok) { assert.equal(answer.result, n); assert.equal(runs.get(n), 1); }
      return answer;
    }, { every: 25 }));
    for (let n = 0; n < 8; n++) {
      const before = daemon.registrations;
      await sleep(300);
      drop(daemon);
      await waitFor('the daemon is back', () => daemon.registrations > before);
    }
    const back = performance.now();
    const answers = (await Promise.all(loops.map((l) => l.stop()))).flat();
    assert.ok(performance.now() - back < lateAck + 2000, `the last answer came ${Math.round(performance.now() - back)} ms after the last return`);
    assert.deepEqual([...runs].filter(([, times]) => times > 1), [], 'calls that ran more than once');
    assert.ok(answers.every((a) => a.ok || a.code === 'RPC_TARGET_LOST'), tally(answers));
    assert.ok(answers.filter((a) => a.ok).length > answers.length / 2, tally(answers));
  }
});

scenario('S1.21 an id used again after its caller\'s replica was killed does not run the handler again', async (x) => {
  const held = gate();
  const daemon = await x.daemon(1, x.user, { work: async (p) => { await held.opened; return `done ${p}`; } });
  const caller = await x.caller(0, x.user);
  const stored = fresh('id');
  const running = fresh('id');
  held.open();
  assert.equal((await call(caller, 'work', 1, { id: stored })).result, 'done 1');

  const second = gate();
  daemon.off('rpc-request').on('rpc-request', async (request, ack) => { daemon.requests.push(request); await second.opened; ack(`done ${request.params}`); });
  const lost = call(caller, 'work', 2, { id: running });
  await waitFor('the handler runs', () => daemon.requests.length === 2);
  await x.cluster.replicas[0].kill();
  assert.equal((await lost).code, 'NO_ANSWER');
  await online(caller);
  assert.equal((await call(caller, 'work', 1, { id: stored })).result, 'done 1', 'what was stored outlives its replica');
  const again = call(caller, 'work', 2, { id: running });
  await sleep(500);
  second.open();
  const answer = await again;
  assert.equal(answer.result, 'done 2', JSON.stringify(answer));
  assert.ok(answer.ms < 10_000, `${answer.ms} ms`);
  assert.equal(daemon.requests.length, 2, 'one run for one id');
});

scenario('a frozen replica is declared lost; when it wakes, its clients come back by themselves and everything is callable', async (x) => {
  // The short grace shows from outside when the replica is lost: what it held is not available any more.
  const cluster = await x.alone({ flags: { 'rpc-grace': '1s' } });
  const [frozen] = cluster.replicas;
  const there = await cluster.clients.daemon(0, x.user, { there: (p) => p });
  await cluster.clients.daemon(1, x.user, { here: (p) => p });
  const inside = await cluster.clients.caller(0, x.user);
  const outside = await cluster.clients.caller(1, x.user);
  const calls = cluster.clients.loop((n) => call(outside, 'here', n), { every: 20 });
  frozen.freeze();
  const began = performance.now();
  await waitFor('the replica is lost', async () => (await call(outside, 'there', 1, { timeout: 200 })).code === 'RPC_NOT_AVAILABLE', 7000);
  await sleep(began + 8000 - performance.now());
  frozen.thaw();
  noFailure(await calls.stop(), 100);
  await waitFor('its clients have come back', () => [inside, there].every((c) => c.ends.length && c.connected));
  const all = [[inside, 'here'], [inside, 'there'], [outside, 'there'], [outside, 'here']];
  await waitFor('everything is callable', async () => {
    const answers = await Promise.all(all.map(([c, m]) => call(c, m, 1, { timeout: 1000 })));
    return answers.every((a) => a.ok);
  });
  for (let n = 0; n < 50; n++) for (const [c, m] of all) noFailure([await call(c, m, n)]);
  assert.ok(there.connected && inside.connected);
  assert.deepEqual(outside.ends, [], 'who was elsewhere noticed nothing');
  // The replica can write again: what it acknowledges is found elsewhere.
  await frozen.ready();
  const late = await cluster.clients.daemon(0, x.user, { late: (p) => p });
  assert.equal(late.at, 0);
  noFailure([await call(outside, 'late', 1)]);
});
