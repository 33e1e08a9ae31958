// Calls while nothing breaks: the contract's call table, calls that carry an id, and the graces.
import assert from 'node:assert/strict';
import { ask, call, drop, fresh, gate, LONG, noFailure, online, sleep, suite, vanish, waitFor } from './harness.mjs';

const { scenario, together } = suite();

const atOnce = 500; // ms; what the contract calls "at once"
const refused = (answer, code, error) => {
  assert.equal(answer.ok, false, JSON.stringify(answer));
  assert.equal(answer.code, code, JSON.stringify(answer));
  if (error) assert.equal(answer.error, error);
  else assert.ok(typeof answer.error === 'string' && answer.error, 'a failure says what it is');
};
const swift = (answer) => assert.ok(answer.ms < atOnce, `${answer.ms} ms`);
const never = new Promise(() => {});

scenario('S1.11 steady calls across replicas all succeed, one after another and at once', async (x) => {
  await x.daemon(0, x.user, { echo: (p) => p });
  const callers = [await x.caller(1, x.user), await x.caller(0, x.user)];
  for (const caller of callers) {
    for (let n = 0; n < 100; n++) assert.deepEqual((await call(caller, 'echo', { n })).result, { n });
    const answers = await Promise.all(Array.from({ length: 300 }, (_, n) => call(caller, 'echo', n)));
    noFailure(answers);
    answers.forEach((a, n) => assert.equal(a.result, n, 'the answer is its own call\'s'));
  }
});

scenario('S1.17 a loop of calls shows no failure', async (x) => {
  for (const i of [0, 1]) await x.daemon(i, x.user, { [`echo${i}`]: (p) => p });
  const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  const loops = callers.flatMap((c) => [0, 1].map((i) => x.loop((n) => call(c, `echo${i}`, n))));
  await sleep(LONG ? 60_000 : 6000);
  for (const l of loops) noFailure(await l.stop(), 100);
});

scenario('S1.25 a method is called through the other replica at the moment its registration is acknowledged, 300 times', async (x) => {
  const daemon = await x.daemon(0, x.user, {});
  daemon.off('rpc-request').on('rpc-request', ({ method }, ack) => ack(method));
  const caller = await x.caller(1, x.user);
  for (let n = 0; n < 300; n++) {
    const ack = await ask(daemon, 'rpc-register', { method: `m${n}` });
    assert.ok(ack.ok, JSON.stringify(ack));
    const answer = await call(caller, `m${n}`);
    assert.ok(answer.ok, `call ${n}: ${JSON.stringify(answer)}`);
    assert.equal(answer.result, `m${n}`);
  }
});

scenario('S1.22 a registration sent in the tick of the connect event is never dropped', async (x) => {
  for (let n = 0; n < 20; n++) {
    const i = n % 2;
    const daemon = x.client(i, { user: x.user, peer: `tick-${n}` });
    const acked = new Promise((done) => daemon.on('connect', () => daemon.emit('rpc-register', { method: `tick${n}` }, done)));
    daemon.on('rpc-request', ({ params }, ack) => ack(params));
    assert.ok((await acked).ok);
    const caller = await x.caller(1 - i, x.user);
    assert.equal((await call(caller, `tick${n}`, n)).result, n);
    daemon.close();
    caller.close();
  }
});

scenario('S1.22 a registration sent before the CONNECT reply is never dropped, and events keep their order', async (x) => {
  const caller = await x.caller(1, x.user);
  for (let n = 0; n < 20; n++) {
    const daemon = x.client(n % 2, { user: x.user, peer: `early-${n}` });
    const heard = [];
    daemon.onAny((event, m) => heard.push(`${event} ${m.method}`));
    daemon.on('rpc-request', ({ params }, ack) => ack(params));
    // The client has written CONNECT when its manager opens; these packets follow it in the same tick.
    daemon.io.on('open', () => {
      daemon.io.engine.write(`2["rpc-register",{"method":"first${n}"}]`);
      daemon.io.engine.write(`2["rpc-register",{"method":"early${n}"}]`);
      daemon.io.engine.write(`2["rpc-unregister",{"method":"first${n}"}]`);
    });
    await waitFor('the events are answered', () => heard.length === 3, 5000);
    assert.deepEqual(heard, [`rpc-registered first${n}`, `rpc-registered early${n}`, `rpc-unregistered first${n}`]);
    assert.equal((await call(caller, `early${n}`, n)).result, n);
    daemon.close();
  }
});

scenario('S1.9 a call is routed by its user and method, never by a socket', async (x) => {
  const other = fresh('user');
  const mine = await x.daemon(0, x.user, { who: () => 'mine' }, { peer: 'same' });
  await x.daemon(0, other, { who: () => 'other', only: () => 'other' }, { peer: 'same' });
  const [a, b] = [await x.caller(1, x.user), await x.caller(1, other)];
  assert.equal((await call(a, 'who')).result, 'mine');
  assert.equal((await call(b, 'who')).result, 'other');
  refused(await call(a, 'only'), 'RPC_NOT_AVAILABLE', 'RPC method not available');
  const former = mine.id;
  mine.disconnect().connect();
  await waitFor('the daemon has registered anew', () => mine.registrations === 2);
  assert.notEqual(mine.id, former);
  assert.equal((await call(a, 'who')).result, 'mine');
});

scenario('any JSON value passes through a call unchanged', async (x) => {
  await x.daemon(0, x.user, { echo: (p) => p });
  const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  const values = [
    null, true, false, 0, -1, 1.5, 2 ** 53, 1e-7, '', 'ü 🚀 \u2028 \\u0000 "quoted" </script>', [], {}, [[], [null]],
    { ok: false, code: 'X', error: 'an app\'s own' }, { method: 'x', id: 2, _placeholder: 'no' }, { deep: { a: [1, { b: null }] } }, 'x'.repeat(200_000),
  ];
  for (const caller of callers) {
    for (const value of values) {
      const answer = await call(caller, 'echo', value);
      assert.ok(answer.ok, JSON.stringify(answer).slice(0, 300));
      assert.deepEqual(answer.result, value);
    }
  }
});

// --- the call table ---------------------------------------------------------------

scenario('a method that nobody registered is not available, at once', async (x) => {
  for (const i of [0, 1]) {
    const answer = await call(await x.caller(i, x.user), 'nobody');
    refused(answer, 'RPC_NOT_AVAILABLE', 'RPC method not available');
    swift(answer);
  }
});

scenario('an unregistered method is not available, at once, on every replica', async (x) => {
  const daemon = await x.daemon(0, x.user, { gone: () => 1 });
  const told = new Promise((done) => daemon.once('rpc-unregistered', done));
  assert.ok((await ask(daemon, 'rpc-unregister', { method: 'gone' })).ok);
  assert.deepEqual(await told, { method: 'gone' });
  // At once where it was acknowledged; elsewhere as soon as that replica has heard of it.
  const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  refused(await call(callers[0], 'gone'), 'RPC_NOT_AVAILABLE');
  await waitFor('the other replica has heard of it', async () => (await call(callers[1], 'gone')).code === 'RPC_NOT_AVAILABLE', 1000);
  for (const c of callers) {
    const answer = await call(c, 'gone');
    refused(answer, 'RPC_NOT_AVAILABLE', 'RPC method not available');
    swift(answer);
  }
});

scenario('a registration is acknowledged with its version, and by an event', async (x) => {
  const daemon = await x.caller(0, x.user, { peer: 'p' });
  const told = new Promise((done) => daemon.once('rpc-registered', done));
  const ack = await ask(daemon, 'rpc-register', { method: 'm', replaySafe: true });
  assert.ok(ack.ok && ack.version, JSON.stringify(ack));
  assert.deepEqual(await told, { method: 'm' });
});

scenario('a bad registration is refused, tells rpc-error, and changes nothing', async (x) => {
  const daemon = await x.daemon(0, x.user, { good: (p) => p });
  for (const body of [{}, { method: '' }, { method: 5 }, { method: null }, { method: ['m'] }]) {
    const told = new Promise((done) => daemon.once('rpc-error', done));
    refused(await ask(daemon, 'rpc-register', body), 'BAD_REQUEST');
    assert.deepEqual(await told, { type: 'register', error: 'Invalid method name' });
  }
  assert.equal((await call(await x.caller(1, x.user), 'good', 1)).result, 1);
});

scenario('a caller cannot call a method of its own connection', async (x) => {
  const both = await x.daemon(0, x.user, { self: () => 1 });
  const answer = await call(both, 'self');
  refused(answer, 'RPC_SAME_SOCKET', 'Cannot call RPC on the same socket');
  swift(answer);
  assert.equal(both.requests.length, 0);
});

scenario('a call without a method is a bad request, at once', async (x) => {
  const caller = await x.caller(0, x.user);
  for (const body of [{}, { params: 1 }, { method: '' }, { method: null }]) {
    const answer = await ask(caller, 'rpc-call', body);
    refused(answer, 'BAD_REQUEST', 'Invalid parameters: method is required');
    swift(answer);
  }
});

scenario('a handler that does not answer times out at the time the caller gave', async (x) => {
  const daemon = await x.daemon(0, x.user, { silent: () => never });
  const cancelled = [];
  daemon.on('rpc-cancel', ({ id }) => cancelled.push(id));
  for (const i of [0, 1]) {
    const caller = await x.caller(i, x.user);
    for (const timeout of [300, 1200]) {
      const answer = await call(caller, 'silent', i, { timeout });
      refused(answer, 'RPC_TIMEOUT', 'operation has timed out');
      assert.ok(answer.ms >= timeout - 5 && answer.ms < timeout + atOnce, `${answer.ms} ms of ${timeout}`);
    }
  }
  await waitFor('the daemon hears that each was given up', () => cancelled.length === 4, 2000);
  assert.deepEqual(cancelled, daemon.requests.map((r) => r.id));
});

scenario('the daemon hears rpc-cancel when the caller goes away', async (x) => {
  const daemon = await x.daemon(0, x.user, { work: () => never });
  const cancelled = [];
  daemon.on('rpc-cancel', ({ id }) => cancelled.push(id));
  for (const [k, leave] of [(c) => c.disconnect(), vanish].entries()) {
    for (const i of [0, 1]) {
      const caller = await x.caller(i, x.user);
      const asked = daemon.requests.length;
      void call(caller, 'work', k);
      await waitFor('the request is at the handler', () => daemon.requests.length > asked);
      leave(caller);
      await waitFor('the daemon hears it', () => cancelled.includes(daemon.requests[asked].id), 2000);
    }
  }
  assert.equal(cancelled.length, 4, 'once for each call');
});

scenario('a bad argument is answered with a code, and the connection stays usable', async (x) => {
  await x.daemon(1, x.user, { echo: (p) => p });
  const caller = await x.caller(0, x.user);
  const { id } = caller;
  for (const event of ['rpc-call', 'rpc-register', 'rpc-unregister']) {
    for (const body of [undefined, null, 5, 'text', true, [], [1], {}, { method: {} }, Buffer.from('bytes'), { method: Buffer.from('m') }]) {
      refused(await ask(caller, event, body), 'BAD_REQUEST');
    }
  }
  for (const more of [{ timeout: 'soon' }, { timeout: -1 }, { timeout: {} }, { id: {} }]) refused(await ask(caller, 'rpc-call', { method: 'echo', ...more }), 'BAD_REQUEST');
  for (const event of ['no-such-event', 'rpc_call', 'RPC-CALL', '']) refused(await ask(caller, event, { method: 'echo' }), 'UNKNOWN_EVENT');
  // The same without an ack: nothing to answer, nothing to break.
  caller.emit('rpc-call', null).emit('rpc-register').emit('no-such-event', 1, 2, 3);
  assert.equal((await call(caller, 'echo', 'still here')).result, 'still here');
  assert.equal(caller.id, id);
  assert.deepEqual(caller.ends, []);
});

scenario('keep-alive events are accepted and ignored', async (x) => {
  const daemon = await x.daemon(0, x.user, { echo: (p) => p });
  for (const event of ['machine-alive', 'session-alive']) {
    daemon.emit(event, { machineId: 'm', time: 1 });
    const ack = await ask(daemon, event, { sid: 's' });
    assert.equal(ack.ok, true, JSON.stringify(ack));
  }
  assert.equal((await call(await x.caller(1, x.user), 'echo', 1)).result, 1);
});

// --- one connection per peer ------------------------------------------------------

for (const [where, to] of [['the same', 0], ['another', 1]]) {
  scenario(`a newer connection of a peer replaces the older one, on ${where} replica`, async (x) => {
    const old = await x.daemon(0, x.user, { who: () => 'old' }, { peer: 'p' });
    const told = [];
    old.on('peer-replaced', (m) => told.push(m));
    const now = await x.daemon(to, x.user, { who: () => 'new' }, { peer: 'p' });
    await waitFor('the older connection is ended', () => !old.connected, 3000);
    assert.equal(told.length, 1, 'peer-replaced came, once, before the end');
    const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
    // Long enough for a client that was only cut off to come back and fight.
    const loops = callers.map((c) => x.loop((n) => call(c, 'who', n)));
    await sleep(1500);
    for (const l of loops) {
      const answers = await l.stop();
      noFailure(answers, 20);
      assert.ok(answers.every((a) => a.result === 'new'));
    }
    assert.equal(old.connected, false, 'the older connection does not come back by itself');
    assert.deepEqual(now.ends, [], 'the newer one was left alone');
  });
}

scenario('connections without a peer id, and peers of other users, are in nobody\'s way', async (x) => {
  const all = [];
  for (const i of [0, 1, 0, 1]) all.push(await x.caller(i, x.user));
  for (const i of [0, 1]) all.push(await x.caller(i, fresh('user'), { peer: 'same' }));
  await x.daemon(0, x.user, { echo: (p) => p });
  for (const c of all.slice(0, 4)) noFailure([await call(c, 'echo', 1)]);
  for (const c of all) assert.deepEqual(c.ends, []);
});

// --- calls with an id -------------------------------------------------------------

scenario('two calls with one id, from two callers on two replicas, run the handler once and both get the result', async (x) => {
  const daemon = await x.daemon(0, x.user, { count: async (p) => { await sleep(20); return { run: daemon.requests.length, p }; } });
  const [a, b, c] = [await x.caller(0, x.user), await x.caller(1, x.user), await x.caller(1, x.user)];
  for (let n = 1; n <= 10; n++) {
    const id = fresh('id');
    const both = await Promise.all([call(a, 'count', n, { id }), call(b, 'count', n, { id })]);
    noFailure(both);
    for (const answer of both) assert.deepEqual(answer.result, { run: n, p: n });
    // A repeat after the end gets what was stored, on any replica.
    for (const caller of [a, b, c]) assert.deepEqual((await call(caller, 'count', n, { id })).result, { run: n, p: n });
    assert.equal(daemon.requests.length, n, 'one run for one id');
  }
  const id = fresh('id');
  const first = await call(a, 'count', 'kept', { id });
  assert.ok((await ask(daemon, 'rpc-unregister', { method: 'count' })).ok);
  for (const caller of [a, b]) assert.deepEqual((await call(caller, 'count', 'kept', { id })).result, first.result);
});

scenario('an id is the caller\'s user\'s own', async (x) => {
  const other = fresh('user');
  const id = fresh('id');
  await x.daemon(0, x.user, { who: () => 'mine' });
  await x.daemon(0, other, { who: () => 'other' });
  assert.equal((await call(await x.caller(1, x.user), 'who', 0, { id })).result, 'mine');
  assert.equal((await call(await x.caller(1, other), 'who', 0, { id })).result, 'other');
});

scenario('a call with an id outlives its caller\'s connection: repeated from the next one, it gets the result of the first run', async (x) => {
  const held = gate();
  const daemon = await x.daemon(0, x.user, { work: async (p) => { await held.opened; return `done ${p}`; } });
  const caller = await x.caller(0, x.user);
  const id = fresh('id');
  const lost = call(caller, 'work', 1, { id });
  await waitFor('the handler runs', () => daemon.requests.length);
  drop(caller);
  assert.equal((await lost).code, 'NO_ANSWER');
  await online(caller);
  assert.equal(caller.at, 1, 'it is on the other replica now');
  const again = call(caller, 'work', 1, { id });
  // Nothing to wait for from outside before the handler ends: whether the repeat has joined already or finds
  // the stored result, it gets the same.
  held.open();
  assert.equal((await again).result, 'done 1');
  assert.equal(daemon.requests.length, 1);
});

// --- graces -----------------------------------------------------------------------

scenario('a call made while the daemon is briefly away is held, and answered when it is back', async (x) => {
  const daemon = await x.daemon(0, x.user, { echo: (p) => p });
  const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  for (const leave of [(d) => d.disconnect(), vanish]) {
    leave(daemon);
    // A call that is not answered for a while tells from outside that the server has seen the end.
    for (const c of callers) await waitFor('the daemon is away', async () => (await call(c, 'echo', 0, { timeout: 150 })).code === 'RPC_TIMEOUT');
    const held = callers.map((c) => call(c, 'echo', 7));
    await sleep(1500);
    daemon.io.reconnection(true);
    const back = performance.now();
    daemon.connect();
    const answers = await Promise.all(held);
    noFailure(answers);
    assert.ok(performance.now() - back < 2000, 'soon after the daemon is back');
    for (const a of answers) assert.ok(a.ms > 1400 && a.result === 7, JSON.stringify(a));
  }
});

// These wait for the default graces of 10 s, so they wait together.
together('time', {
  async 'S1.6 a daemon that sends no keep-alive stays callable'(x) {
    const daemon = await x.daemon(0, x.user, { echo: (p) => p });
    const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
    const until = performance.now() + (LONG ? 75_000 : 20_000);
    while (performance.now() < until) {
      for (const c of callers) noFailure([await call(c, 'echo', 1)]);
      await sleep(1000);
    }
    assert.equal(daemon.registrations, 1);
    assert.deepEqual(daemon.ends, []);
  },

  async 'S1.5 a former connection\'s late disconnect never removes a newer registration, not after the grace either'(x) {
    const callers = [await x.caller(0, x.user), await x.caller(1, x.user)];
    let old = await x.daemon(0, x.user, { who: () => 0 }, { peer: 'p' });
    for (let n = 1; n <= 6; n++) {
      const now = await x.daemon(n % 2, x.user, { who: () => n }, { peer: 'p' });
      // Its end may have come already; if not, this is the late one, of both kinds.
      if (n % 3) vanish(old); else old.disconnect();
      for (const c of callers) await waitFor('the new connection answers', async () => (await call(c, 'who')).result === n, 1000);
      for (const c of callers) assert.equal((await call(c, 'who')).result, n);
      old = now;
    }
    const until = performance.now() + 12_000;
    while (performance.now() < until) {
      for (const c of callers) assert.equal((await call(c, 'who')).result, 6);
      await sleep(250);
    }
    assert.deepEqual(old.ends, []);
  },

  ...Object.fromEntries(Object.entries({ 'a disconnect': (d) => d.disconnect(), 'a lost connection': vanish }).map(([how, end]) => [
    `S1.10 after ${how} without a return, a call in its handler is lost within the grace, and then the method is not available`,
    async (x) => {
      const daemon = await x.daemon(0, x.user, { slow: () => never });
      const caller = await x.caller(1, x.user);
      const running = call(caller, 'slow');
      await waitFor('the handler runs', () => daemon.requests.length);
      end(daemon);
      const answer = await running;
      refused(answer, 'RPC_TARGET_LOST', 'RPC target disconnected');
      assert.ok(answer.ms < 12_000, `${answer.ms} ms, with a grace of 10 s`);
      await waitFor('the grace has ended', async () => (await call(caller, 'slow', 0, { timeout: 1000 })).code === 'RPC_NOT_AVAILABLE', 12_000);
      const then = await call(caller, 'slow');
      refused(then, 'RPC_NOT_AVAILABLE', 'RPC method not available');
      swift(then);
    },
  ])),

  async 'a held call fails when the grace ends without the daemon'(x) {
    const daemon = await x.daemon(1, x.user, { echo: (p) => p });
    const caller = await x.caller(0, x.user);
    daemon.disconnect();
    await sleep(1000);
    const answer = await call(caller, 'echo', 1);
    refused(answer, 'RPC_NOT_AVAILABLE', 'RPC method not available');
    assert.ok(answer.ms < 11_000, `${answer.ms} ms, with a grace of 10 s begun 1 s before`);
  },

  async 'the same client is back but its answer was lost: RPC_TARGET_LOST when the time for a late ack is over'(x) {
    const daemon = await x.daemon(0, x.user, { slow: () => never });
    const caller = await x.caller(1, x.user);
    const running = call(caller, 'slow');
    await waitFor('the handler runs', () => daemon.requests.length);
    drop(daemon);
    await waitFor('the daemon is back', () => daemon.registrations === 2);
    assert.ok(daemon.recovered, 'the session was carried on');
    const answer = await running;
    refused(answer, 'RPC_TARGET_LOST');
    assert.ok(answer.ms > 9500 && answer.ms < 12_500, `${answer.ms} ms, with 10 s for a late ack`);
  },

  async 'the daemon comes back as a new process: a call in the former one\'s handler is lost at once, unless it may be repeated'(x) {
    for (const replaySafe of [false, true]) {
      const user = fresh('user');
      const former = await x.daemon(0, user, { work: () => never }, { peer: 'p', replaySafe });
      const caller = await x.caller(1, user);
      const running = call(caller, 'work');
      await waitFor('the handler runs', () => former.requests.length);
      vanish(former);
      const next = await x.daemon(1, user, { work: () => 'next' }, { peer: 'p', replaySafe });
      const answer = await running;
      assert.ok(answer.ms < 3000, `${answer.ms} ms`);
      if (replaySafe) {
        assert.equal(answer.result, 'next', JSON.stringify(answer));
        assert.equal(next.requests[0].id, former.requests[0].id, 'the same id');
      } else {
        refused(answer, 'RPC_TARGET_LOST', 'RPC target disconnected');
        assert.equal(next.requests.length, 0);
      }
    }
  },
});
