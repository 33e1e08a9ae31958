// Channels over replicas: one order, and recovery that loses nothing and says nothing untrue.
import assert from 'node:assert/strict';
import { ask, call, drop, fresh, LONG, noFailure, online, pace, sleep, suite, tally, waitFor } from './harness.mjs';

const { scenario } = suite({ flags: { 'history-messages': 1000 } });

// listener is a client that keeps the data of every `m` it gets, and how each of its connections began.
async function listener(x, i, channels, { auth = {}, options = {} } = {}) {
  const socket = x.client(i, { user: x.user, ...auth }, options);
  Object.assign(socket, { got: [], offsets: [], begun: [] });
  socket.on('m', (data, offset) => { socket.got.push(data); socket.offsets.push(offset); });
  socket.on('connect', () => socket.begun.push(socket.recovered));
  await online(socket);
  for (const channel of channels) {
    const answer = await ask(socket, 'channel-subscribe', { channel });
    assert.ok(answer.ok, JSON.stringify(answer));
  }
  return socket;
}

const publish = (socket, channel, data, event = 'm') => ask(socket, 'channel-publish', { channel, event, data });
const got = (socket, list, within) => waitFor(`the client has ${list.length} messages`, () => socket.got.length >= list.length, within)
  .then(() => assert.deepEqual(socket.got, list));
const range = (n, from = 0) => Array.from({ length: n }, (_, i) => from + i);

// gone ends the connection and keeps the client from coming back until the returned function is called.
async function gone(socket, how = drop) {
  socket.io.reconnection(false);
  await how(socket);
  await waitFor('the client has lost its connection', () => !socket.connected);
  return async (url) => {
    if (url) socket.io.uri = url;
    socket.io.reconnection(true);
    socket.connect();
    await online(socket);
  };
}

scenario('a message reaches every subscriber on every replica, in one order', async (x) => {
  const channel = fresh('order');
  const listeners = await Promise.all(range(6).map((i) => listener(x, i % 2, [channel])));
  const publishers = [await x.caller(0, x.user), await x.caller(1, x.user)];
  const n = 200;
  const answers = await Promise.all(publishers.flatMap((p, who) => range(n).map((i) => publish(p, channel, `${who}-${i}`))));
  noFailure(answers, 2 * n);
  assert.equal(new Set(answers.map((a) => a.offset)).size, 2 * n);
  await waitFor('all have all', () => listeners.every((l) => l.got.length === 2 * n));
  for (const l of listeners) assert.deepEqual(l.got, listeners[0].got);
  for (const who of [0, 1]) assert.deepEqual(listeners[0].got.filter((m) => m.startsWith(`${who}-`)), range(n).map((i) => `${who}-${i}`), 'the order of one publisher');
});

scenario('a message published right after the subscription was acknowledged reaches', async (x) => {
  const publisher = await x.caller(1, x.user);
  for (const i of range(20)) {
    const channel = fresh('at-once');
    const l = await listener(x, 0, [channel]);
    noFailure([await publish(publisher, channel, i)]);
    await got(l, [i]);
  }
});

scenario('what is given up comes no more; what is wrong is refused', async (x) => {
  const channel = fresh('refused');
  const l = await listener(x, 0, [channel]);
  noFailure([await publish(l, channel, 1)]);
  await got(l, [1]);
  noFailure([await ask(l, 'channel-unsubscribe', { channel }), await publish(l, channel, 2), await publish(l, `user:${x.user}`, 3)]);
  await got(l, [1, 3]);
  const code = async (event, body) => (await ask(l, event, body)).code;
  assert.equal(await code('channel-subscribe', {}), 'BAD_REQUEST');
  assert.equal(await code('channel-subscribe', { channel: 5 }), 'BAD_REQUEST');
  assert.equal(await code('channel-subscribe', { channel: 'x'.repeat(300) }), 'BAD_REQUEST');
  assert.equal(await code('channel-publish', { channel, data: 1 }), 'BAD_REQUEST');
  for (const event of ['connect', 'disconnect', 'rpc-request', 'peer-replaced', '']) assert.equal(await code('channel-publish', { channel, event, data: 1 }), 'BAD_REQUEST', event);
  assert.ok(l.connected);
});

scenario('recovery: again and again, on either replica, before anything came, with texts for data', async (x) => {
  const channel = fresh('recovery');
  const publisher = await x.caller(1, x.user);
  const l = await listener(x, 0, [channel]);
  const { id } = l;
  const want = [];
  const say = async (data) => { noFailure([await publish(publisher, channel, data)]); want.push(data); };
  for (const round of range(4)) {
    const back = await gone(l);
    for (const i of range(3)) await say(`text ${round}-${i}`);
    await back(x.urls[round % 2]);
    await got(l, want);
    await say(round % 2 ? { round } : `live ${round}`);
    await got(l, want);
    assert.equal(l.id, id);
  }
  assert.deepEqual(l.begun, [false, true, true, true, true]);
  assert.ok(l.offsets.every((o) => typeof o === 'string'));
});

scenario('recovery from a half-open connection, which the server still holds for a living one', async (x) => {
  const channel = fresh('half-open');
  const publisher = await x.caller(1, x.user);
  const l = await listener(x, 0, [channel]);
  const back = await gone(l, (s) => {
    // The client's side ends without a word on the wire.
    const ws = s.io.engine.transport.ws;
    ws._socket.pause();
    ws.onclose = ws.onerror = ws.onmessage = () => {};
    s.io.engine.transport.doClose = () => {};
    s.io.engine._onClose('transport error');
  });
  for (const i of range(5)) noFailure([await publish(publisher, channel, i)]);
  await back(x.urls[1]);
  await got(l, range(5));
  assert.deepEqual(l.begun, [false, true]);
});

scenario('S1.12 a replica is killed: 20 of 20 get everything once and in order, the survivors\' connections stand', async (x) => {
  const channel = fresh('broadcast');
  const listeners = await Promise.all(range(20).map((i) => listener(x, i % 2, [channel])));
  const publisher = await x.caller(1, x.user);
  const n = 200;
  const loop = (async () => {
    const answers = [];
    for (const i of range(n)) { answers.push(publish(publisher, channel, i)); await sleep(10); }
    return Promise.all(answers);
  })();
  await sleep(500);
  await x.cluster.replicas[0].kill();
  noFailure(await loop, n);
  await waitFor('all have all', () => listeners.every((l) => l.got.length >= n), 20_000);
  for (const l of listeners) assert.deepEqual(l.got, range(n));
  listeners.forEach((l, i) => assert.deepEqual(l.ends, i % 2 ? [] : l.ends));
  listeners.forEach((l, i) => assert.deepEqual(l.begun, i % 2 ? [false] : [false, true]));
});

scenario('replicas are killed at random under steady messages: nothing is lost, doubled or out of order', async (x) => {
  const { clients, replicas } = await x.alone({ replicas: 3 });
  const channel = fresh('chaos');
  const count = LONG ? 50 : 20;
  Object.assign(clients, { user: x.user });
  const listeners = await Promise.all(range(count).map((i) => listener(clients, i % 2, [channel])));
  const publisher = clients.client(2, { user: x.user });
  await online(publisher);
  const end = performance.now() + (LONG ? 60_000 : 12_000);
  const sent = [];
  const publishing = pace(50, () => performance.now() >= end, (i) => sent.push(publish(publisher, channel, i)));
  let kills = 0;
  while (performance.now() < end - 1000) {
    const victim = replicas[Math.floor(Math.random() * 2)]; // the publisher's lives
    await sleep(300 + Math.random() * 1500);
    await victim.kill();
    await sleep(Math.random() * 500);
    await victim.again();
    kills++;
  }
  await publishing;
  noFailure(await Promise.all(sent), 100);
  await waitFor('all have all', () => listeners.every((l) => l.got.length >= sent.length), 30_000)
    .catch((err) => { throw new Error(`${err.message}: ${listeners.map((l) => `${l.got.length}/${sent.length} ${l.begun}`)}`); });
  for (const l of listeners) assert.deepEqual(l.got, range(sent.length));
  x.t.diagnostic(`${sent.length} messages, ${kills} kills, ${listeners.reduce((a, l) => a + l.begun.length - 1, 0)} returns`);
});

scenario('Redis is emptied: clients with channels begin anew, and are never told that they recovered', async (x) => {
  const { clients, redis } = await x.alone({ replicas: 2 });
  Object.assign(clients, { user: x.user });
  const channel = fresh('emptied');
  const l = await listener(clients, 0, [channel]);
  const publisher = await clients.caller(1, x.user);
  noFailure([await publish(publisher, channel, 'before')]);
  await got(l, ['before']);
  assert.equal(await redis.reply('FLUSHALL'), '+OK');
  await waitFor('the client has come back', () => l.begun.length === 2 && l.connected);
  assert.deepEqual(l.begun, [false, false]);
  noFailure([await ask(l, 'channel-subscribe', { channel }), await publish(publisher, channel, 'after')]);
  await got(l, ['before', 'after']);
  // Its offset is of the new epoch now, and it recovers as ever.
  const back = await gone(l);
  noFailure([await publish(publisher, channel, 'missed')]);
  await back();
  await got(l, ['before', 'after', 'missed']);
  assert.deepEqual(l.begun, [false, false, true]);
});

scenario('a history that does not reach back: a fresh session; the last messages of one that does: recovered', async (x) => {
  const { clients } = await x.alone({ replicas: 2, flags: { 'history-messages': 20 } });
  Object.assign(clients, { user: x.user });
  const channel = fresh('exceeded');
  const [a, b] = [await listener(clients, 0, [channel]), await listener(clients, 0, [channel])];
  const publisher = await clients.caller(1, x.user);
  const [backA, backB] = [await gone(a), await gone(b)];
  for (const i of range(20)) noFailure([await publish(publisher, channel, i)]);
  await backA();
  await got(a, range(20));
  for (const i of range(30)) noFailure([await publish(publisher, channel, i)]);
  await backB();
  assert.deepEqual([a.begun, b.begun], [[false, true], [false, false]]);
  assert.deepEqual(b.got, []);
});

scenario('a client that reads too slowly is closed, and recovers what it missed', async (x) => {
  const { clients } = await x.alone({ replicas: 1, flags: { 'outbox-messages': 200, 'history-messages': 2000 } });
  Object.assign(clients, { user: x.user });
  const channel = fresh('slow');
  const l = await listener(clients, 0, [channel]);
  const publisher = await clients.caller(0, x.user);
  const tcp = l.io.engine.transport.ws._socket;
  tcp.pause();
  const big = 'x'.repeat(20_000);
  const answers = [];
  for (let i = 0; i < 800; i += 20) answers.push(...await Promise.all(range(20).map((n) => publish(publisher, channel, `${i + n} ${big}`))));
  noFailure(answers, 800);
  tcp.resume();
  await waitFor('the client was closed and has come back', () => l.ends.length >= 1 && l.connected, 20_000);
  assert.equal(l.begun.at(-1), true);
  await waitFor('all is there', () => l.got.length >= 800, 20_000);
  assert.deepEqual(l.got.map((s) => Number(s.split(' ')[0])), range(800));
});

scenario('S1.23 calls go on while 5,000 messages a second pass through', async (x) => {
  const seconds = LONG ? 30 : 5;
  const channel = fresh('load');
  // All clients are this one process, which a busy machine may hold up for seconds: what is due then comes at once, by
  // connections that are enough not to have too much under way, and what has come for it waits.
  const { clients } = await x.alone({ flags: { 'outbox-messages': 5000 * seconds, 'outbox-bytes': 2_000_000 * seconds } });
  Object.assign(clients, { user: x.user });
  await clients.daemon(0, x.user, { echo: (p) => p });
  const listeners = await Promise.all(range(2).map((i) => listener(clients, i, [channel])));
  const caller = await clients.caller(1, x.user);
  const publishers = await Promise.all(range(20).map((i) => clients.caller(i % 2, x.user)));
  const loop = clients.loop((n) => call(caller, 'echo', n), { every: 20 });
  const failed = []; let sent = 0;
  const began = performance.now();
  while (performance.now() - began < seconds * 1000) {
    const due = Math.min(5 * (performance.now() - began), seconds * 5000);
    for (; sent < due; sent++) {
      publishers[sent % 20].emit('channel-publish', { channel, event: 'm', data: sent }, (a) => { if (!a.ok) failed.push(a); });
    }
    await sleep(5);
  }
  const results = await loop.stop();
  noFailure(results, 20 * seconds);
  await waitFor('all have all', () => failed.length || listeners.every((l) => l.got.length === sent), 20_000);
  assert.equal(failed.length, 0, tally(failed));
  assert.deepEqual(listeners[0].got, listeners[1].got);
  const ms = results.map((r) => r.ms).sort((a, b) => a - b);
  x.t.diagnostic(`${Math.round(sent / seconds)} messages/s, calls p50 ${ms[ms.length >> 1]} ms, p99 ${ms[Math.floor(ms.length * 0.99)]} ms, ${tally(results)}`);
});

