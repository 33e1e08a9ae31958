// Clients that are not JavaScript, with their own defaults, behind a balancer that knows nothing of sessions. A library
// that the machine lacks is left out, and the test says so; with HOLDFAST_CLIENTS=1 (make clients) it has to be there.
import assert from 'node:assert/strict';
import { libraries, outsiders } from './clients/outside.mjs';
import { ask, balancer, call, fresh, noFailure, online, suite, waitFor } from './harness.mjs';

// Pings come often, so that they are part of what is tested.
const { scenario, together } = suite({ replicas: 2, flags: { 'ping-interval': '1s' } });

const bytes = (n, from) => Buffer.from(Array.from({ length: n }, (_, i) => (i + from) & 255));
const values = [
  null, 0, 'é\u0000"', { deep: [1, { a: null }] }, bytes(0, 0), bytes(256, 0),
  { text: 'é', list: [bytes(100_000, 7), bytes(3, 1)], deep: { of: bytes(1, 255) } },
];

// ready is what starts the library's programs, or undefined when it is not there and need not be.
async function ready(t, library) {
  const program = await library.ready();
  if (!program.missing) return program;
  assert.notEqual(process.env.HOLDFAST_CLIENTS, '1', `${library.name}: ${program.missing}`);
  t.diagnostic(`left out: ${library.name}: ${program.missing}; make clients installs it`);
}

async function front(x) {
  const b = await balancer(x.cluster.urls);
  x.t.after(() => b.close());
  return b.url;
}

const outcome = (what, answer, want) => {
  assert.ok(answer?.ok, `${what}: ${JSON.stringify(answer)}`);
  assert.deepEqual(answer.result, want, what);
};

// everyoneCalls: a stock client calls each of them, each of them calls the stock client's `mirror` and the next of them.
async function everyoneCalls(caller, clients, params) {
  await Promise.all(clients.map(async (c, i) => {
    const next = clients[(i + 1) % clients.length];
    outcome(`npm calls ${c.name}`, await call(caller, c.method, params), params);
    outcome(`${c.name} calls npm`, await c.call('mirror', params), { mirrored: params });
    outcome(`${c.name} calls ${next.name}`, await c.call(next.method, params), params);
  }));
}

const allOk = async (what, clients, ...args) => {
  for (const [i, answer] of (await Promise.all(clients.map((c) => c.ask(...args)))).entries()) assert.ok(answer.ok, `${what}, ${clients[i].name}: ${JSON.stringify(answer)}`);
};

const withEach = (play) => Object.fromEntries(libraries.map((library) => [library.name, async (x) => {
  const program = await ready(x.t, library);
  if (!program) return x.t.skip(`${library.name} is missing; make clients installs it`);
  return play(x, library, program);
}]));

together('connect, upgrade, acks and binary both ways, with', withEach(async (x, library, program) => {
  await x.daemon(0, x.user, { mirror: (params) => ({ mirrored: params }) });
  const caller = await x.caller(1, x.user);
  const clients = await outsiders(x, library, program, await front(x));
  for (const params of values) await everyoneCalls(caller, clients, params);
  await waitFor('each has the transport that it settles for', async () => (await Promise.all(clients.map((c) => c.transport()))).every((t, i) => t === clients[i].settles));

  const name = fresh('outside');
  const got = { c: [], r: [] };
  for (const event of ['c', 'r']) caller.on(event, (data) => got[event].push(data));
  noFailure([await ask(caller, 'channel-subscribe', { channel: name }), await ask(caller, 'room-join', { room: name })]);
  await allOk('subscribe', clients, 'channel-subscribe', { channel: name });
  await allOk('join', clients, 'room-join', { room: name });
  const want = [];
  for (const data of values.slice(1)) {
    for (const sender of [...clients, { name: 'npm', ask: (...args) => ask(caller, ...args) }]) {
      await allOk('publish', [sender], 'channel-publish', { channel: name, event: 'c', data });
      await allOk('emit', [sender], 'room-emit', { room: name, event: 'r', data });
      want.push(data);
    }
  }
  const everyone = [...clients, { name: 'npm', got: (event) => got[event] }];
  await waitFor('everyone has everything', () => everyone.every((c) => ['c', 'r'].every((e) => c.got(e).length >= want.length)));
  for (const c of everyone) for (const e of ['c', 'r']) assert.deepEqual(c.got(e), want, `${c.name} got ${e}`);
  for (const c of clients) assert.deepEqual([c.connects.length, c.ends, c.refusals.filter((r) => r !== 'timeout')], [1, [], []], `${c.name}: nothing went wrong on the way`);

  const refused = await clients[0].call(fresh('nobody'), 1);
  assert.equal(refused.code, 'RPC_NOT_AVAILABLE', JSON.stringify(refused));
}));

// What the Go client may take by itself: it waits for 20 s when it has missed that its WebSocket is open, more than once.
const itsOwnTime = 75_000;

scenario('each replica is killed with kill -9: outside clients come back, are called again and have what they missed', async (x) => {
  const url = await front(x);
  const programs = await Promise.all(libraries.map(async (library) => ({ library, program: await ready(x.t, library) })));
  const there = programs.filter((p) => p.program);
  if (!there.length) return x.t.skip('no outside client is there; make clients installs them');
  const clients = (await Promise.all(there.map(({ library, program }) => outsiders(x, library, program, url)))).flat();
  const daemon = await x.daemon(0, x.user, { mirror: (params) => ({ mirrored: params }) });
  const channel = fresh('killed');
  await allOk('subscribe', clients, 'channel-subscribe', { channel });

  const published = [];
  const publish = async (via, count) => {
    for (let i = 0; i < count; i++) {
      published.push(published.length);
      noFailure([await ask(via, 'channel-publish', { channel, event: 'c', data: published.at(-1) })]);
    }
  };
  // A client that does not know recovery comes back with a new session, and may have missed what was published since.
  const missed = new Map(clients.map((c) => [c, new Set()]));
  const everyoneHas = async () => {
    const had = (c) => published.filter((n) => !missed.get(c).has(n) || c.got('c').includes(n));
    await Promise.all(clients.map((c) => waitFor(`${c.name} has what was published`, () => c.got('c').length >= had(c).length).catch((err) => {
      err.message += `: ${c.got('c')} of ${published}, told ${JSON.stringify(c.connects)}, ends ${c.ends}, refusals ${c.refusals}`;
      throw err;
    })));
    for (const c of clients) assert.deepEqual(c.got('c'), had(c), c.name);
  };

  for (const [i, victim] of x.cluster.replicas.entries()) {
    const via = await x.caller(1 - i, x.user);
    await publish(via, 5);
    await everyoneHas();
    const before = new Map(clients.map((c) => [c, [c.connects.length, c.ends.length]]));
    const began = performance.now();
    await victim.kill();
    const from = published.length;
    await publish(via, 5);
    // Whose session or whose connection the victim had has lost it, and comes back; the others get what was published since.
    const [last] = published.slice(-1);
    await Promise.all(clients.map(async (c) => {
      const [connects, ends] = before.get(c);
      await waitFor(`${c.name} gets what is sent, or ends`, () => c.ends.length > ends || c.got('c').includes(last), itsOwnTime);
      if (c.ends.length === ends) return;
      await waitFor(`${c.name} is back`, () => c.connects.length > connects, itsOwnTime);
      await c.online(itsOwnTime);
      x.t.diagnostic(`${c.name}: back after ${Math.round(performance.now() - began)} ms`);
    }));
    const hit = clients.filter((c) => c.connects.length > before.get(c)[0]);
    assert.ok(hit.length, `${victim.name} had none of the clients`);
    for (const c of hit) {
      assert.equal(!!c.connects.at(-1).recovered, c.recovers, `${c.name} is recovered`);
      if (!c.recovers) published.slice(from).forEach((n) => missed.get(c).add(n));
    }
    await allOk('subscribe again', hit.filter((c) => !c.recovers), 'channel-subscribe', { channel });
    await publish(via, 5);
    await everyoneHas();
    await victim.again();
    await online(daemon);
    await everyoneCalls(via, clients, values.at(-1));
    via.close();
  }
}, 6 * itsOwnTime);
