// The whole wire as a newcomer meets it: clients without options, behind a balancer that knows nothing of
// sessions and gives every TCP connection to the next replica.
import assert from 'node:assert/strict';
import { ask, balancer, call, drop, fresh, LONG, noFailure, online, suite, waitFor } from './harness.mjs';

const { scenario } = suite({ replicas: 3 });
const itsOwn = { transports: undefined, reconnectionDelay: undefined, reconnectionDelayMax: undefined };
const many = LONG ? 200 : 60;

// clients connect through the balancer, with these options and otherwise the client's own, as io(url) has them.
async function behind(x, options, count = many) {
  const b = await balancer(x.cluster.urls);
  x.t.after(() => b.close());
  x.urls = [b.url];
  const clients = Array.from({ length: count }, (_, n) => x.client(0, { user: x.user, peer: `p${n}` }, { ...itsOwn, ...options }));
  await Promise.all(clients.map((c) => online(c, 30_000)));
  return clients;
}

const everyoneAnswers = async (clients) => noFailure(await Promise.all(clients.map((c, n) => call(c, 'echo', n).then((a) => {
  if (a.ok) assert.equal(a.result, n);
  return a;
}))), clients.length);

const transportOf = (c) => c.io.engine.transport.name;
const clean = (clients) => clients.forEach((c) => assert.deepEqual([c.ends, c.refusals], [[], []], 'nothing went wrong on the way'));

scenario(`${many} clients without options connect, upgrade and are answered`, async (x) => {
  await x.daemon(0, x.user, { echo: (p) => p });
  const clients = await behind(x, {});
  await everyoneAnswers(clients);
  await waitFor('all have upgraded', () => clients.every((c) => transportOf(c) === 'websocket'), 30_000);
  await everyoneAnswers(clients);
  clean(clients);
});

scenario(`${many} clients that only poll connect and are answered`, async (x) => {
  await x.daemon(0, x.user, { echo: (p) => p });
  const clients = await behind(x, { transports: ['polling'] });
  for (let round = 0; round < 3; round++) await everyoneAnswers(clients);
  clients.forEach((c) => assert.equal(transportOf(c), 'polling'));
  clean(clients);
});

for (const [what, options] of [['without options', {}], ['that only poll', { transports: ['polling'] }]]) {
  scenario(`a replica is killed: clients ${what} come back`, async (x) => {
    await x.daemon(0, x.user, { echo: (p) => p });
    const clients = await behind(x, options);
    await everyoneAnswers(clients);
    const began = performance.now();
    await x.cluster.replicas[2].kill();
    // Who is answered what it asks after the kill has a connection that the killed replica has no part in.
    const times = await Promise.all(clients.map(async (c, n) => {
      await waitFor(`client ${n} is answered`, async () => (await ask(c, 'rpc-call', { method: 'echo', params: n }, 1000)).ok, 30_000);
      return performance.now() - began;
    }));
    const back = times.filter((_, n) => clients[n].ends.length).map(Math.round).sort((a, b) => a - b);
    x.t.diagnostic(`${back.length} of ${clients.length} lost their connection; half were answered again after ${back[back.length >> 1]} ms, all after ${back.at(-1)} ms`);
    assert.ok(clients.some((c) => c.ends.length), 'the killed replica had none of the clients');
  });
}

scenario('binary params and results cross replicas and transports byte for byte', async (x) => {
  const bytes = (n, from) => Buffer.from(Array.from({ length: n }, (_, i) => (i + from) & 255));
  const seen = [];
  await x.daemon(1, x.user, { swap: (p) => { seen.push(p); return { first: p.list[1], second: p.list[0], text: p.text, same: [p.list[1], p.list[1]] }; } });
  for (const transports of [['websocket'], ['polling']]) {
    for (const i of [0, 1]) {
      const caller = await x.caller(i, x.user, {}, { transports });
      for (const size of [0, 1, 200, 100_000]) {
        const params = { text: 'é\u0000"', list: [bytes(size, 7), bytes(3, size)] };
        for (const more of [{}, { id: fresh('id') }]) {
          const answer = await call(caller, 'swap', params, more);
          assert.ok(answer.ok, JSON.stringify(answer));
          assert.deepEqual(answer.result, { first: params.list[1], second: params.list[0], text: params.text, same: [params.list[1], params.list[1]] });
          if (!more.id) continue;
          const before = seen.length; // a repeat gets what was stored
          assert.deepEqual((await call(await x.caller(2, x.user), 'swap', params, more)).result, answer.result);
          assert.equal(seen.length, before);
        }
      }
    }
  }
  const caller = await x.caller(0, x.user);
  const answer = await ask(caller, 'rpc-register', { method: Buffer.from('x') });
  assert.equal(answer.code, 'BAD_REQUEST', JSON.stringify(answer));
});

scenario('binary in channels and rooms crosses replicas and transports byte for byte, recovered too', async (x) => {
  const channel = fresh('binary');
  const room = fresh('binary');
  const bytes = (n, from) => Buffer.from(Array.from({ length: n }, (_, i) => (i + from) & 255));
  const value = (n) => ({ n, 'é"': 'é\u0000', list: [bytes(n, 7), bytes(0, 0), bytes(n, 7)], deep: { of: bytes(3, n) } });
  const options = [['websocket'], ['polling'], undefined].map((transports) => ({ transports }));
  const listeners = await Promise.all(options.flatMap((o, k) => [0, 1].map(async (i) => {
    const l = await x.caller(i, x.user, { peer: `l${k}${i}` }, o);
    l.got = { c: [], r: [] };
    for (const from of ['c', 'r']) l.on(from, (data, offset) => { assert.equal(typeof offset, 'string'); l.got[from].push(data); });
    noFailure([await ask(l, 'channel-subscribe', { channel }), await ask(l, 'room-join', { room, role: 'member' })]);
    return l;
  })));
  const senders = await Promise.all(options.map((o, k) => x.caller(k % 2, x.user, { peer: `s${k}` }, o)));
  for (const s of senders) noFailure([await ask(s, 'room-join', { room, role: 'member' })]);
  const want = [];
  const send = async (sizes) => {
    for (const n of sizes) for (const s of senders) {
      noFailure([await ask(s, 'channel-publish', { channel, event: 'c', data: value(n) }), await ask(s, 'room-emit', { room, event: 'r', data: value(n) })]);
      want.push(value(n));
    }
  };
  const all = async () => {
    await waitFor('everyone has everything', () => listeners.every((l) => l.got.c.length === want.length && l.got.r.length === want.length));
    for (const l of listeners) for (const from of ['c', 'r']) assert.deepEqual(l.got[from], want);
  };
  await send([0, 1, 200, 100_000]);
  await all();
  for (const l of listeners) { l.io.reconnection(false); drop(l); }
  await waitFor('all are gone', () => listeners.every((l) => !l.connected));
  await send([5, 70_000]);
  for (const l of listeners) { l.io.uri = x.urls[(l.at + 1) % 3]; l.io.reconnection(true); l.connect(); }
  await Promise.all(listeners.map((l) => online(l)));
  for (const l of listeners) assert.ok(l.recovered, 'the session goes on');
  await all();
  await send([9]);
  await all();

  const [s] = senders;
  const code = async (event, body) => (await ask(s, event, body)).code;
  const ten = Array.from({ length: 10 }, (_, i) => bytes(2, i));
  noFailure([await ask(s, 'room-emit', { room, event: 'other', data: ten })]);
  assert.equal(await code('channel-publish', { channel, event: 'c', data: [bytes(600_000, 0), bytes(600_000, 0)] }), 'TOO_LARGE');
  assert.equal(await code('channel-publish', { channel: bytes(1, 1), event: 'c', data: 1 }), 'BAD_REQUEST');
  assert.equal(await code('room-join', { room, role: 'member', meta: { x: bytes(1, 1) } }), 'BAD_REQUEST');
  assert.equal(await code('room-update', { room, settings: { x: bytes(1, 1) } }), 'BAD_REQUEST');
  assert.equal(await code('settings-set', { key: 'x', value: bytes(1, 1) }), 'BAD_REQUEST');
  assert.ok(s.connected);
});

scenario('more attachments than a message may have are refused with a code, and the connection goes on', async (x) => {
  const buffers = (n) => Array.from({ length: n }, (_, i) => Buffer.from([i & 255, 1]));
  const channel = fresh('many');
  const room = fresh('many');
  await x.daemon(2, x.user, { echo: (p) => p, many: (n) => buffers(n) });
  for (const transports of [['websocket'], ['polling'], undefined]) {
    const c = await x.caller(0, x.user, {}, { transports });
    const got = [];
    for (const event of ['c', 'r']) c.on(event, (data) => got.push(data.length));
    noFailure([await ask(c, 'channel-subscribe', { channel }), await ask(c, 'room-join', { room, role: 'member' })]);
    for (const n of [11, 99, 300]) {
      const data = buffers(n);
      for (const [event, body] of [
        ['channel-publish', { channel, event: 'c', data }], ['room-emit', { room, event: 'r', data }],
        ['rpc-call', { method: 'echo', params: data }], ['settings-set', { key: 'k', value: data }],
      ]) {
        const { ok, code, error } = await ask(c, event, body);
        assert.deepEqual([ok, code, error], [false, 'TOO_LARGE', 'A message may have 10 attachments at most'], event);
      }
      c.emit('channel-publish', { channel, event: 'c', data }); // nobody asks what became of it
    }
    const refused = await call(c, 'many', 11);
    assert.equal(refused.result.code, 'TOO_LARGE', JSON.stringify(refused));
    assert.deepEqual((await call(c, 'many', 10)).result, buffers(10));
    assert.deepEqual((await call(c, 'echo', buffers(10))).result, buffers(10));
    noFailure([await ask(c, 'channel-publish', { channel, event: 'c', data: buffers(10) }), await ask(c, 'room-emit', { room, event: 'r', data: buffers(10) })]);
    await waitFor('both messages', () => got.length === 2);
    assert.deepEqual(got, [10, 10]);
    clean([c]);
    await ask(c, 'room-leave', { room });
  }
});

scenario('with --deflate, what is large is compressed on the way to clients without options', async (x) => {
  const { clients } = await x.alone({ replicas: 2, flags: { deflate: true } });
  await clients.daemon(1, x.user, { echo: (p) => p });
  const caller = await clients.caller(0, x.user, {}, { transports: undefined });
  await waitFor('it has upgraded', () => transportOf(caller) === 'websocket');
  const { ws } = caller.io.engine.transport;
  assert.match(ws.extensions, /permessage-deflate/);
  const before = ws._socket.bytesRead;
  for (const params of ['small', 'again '.repeat(100_000), { list: [Buffer.alloc(200_000, 7), Buffer.from('x')] }]) {
    assert.deepEqual((await call(caller, 'echo', params)).result, params);
  }
  assert.ok(ws._socket.bytesRead - before < 50_000, `${ws._socket.bytesRead - before} bytes came`);
  assert.deepEqual(caller.ends, []);
});
