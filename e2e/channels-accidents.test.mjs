// Messages of a channel and of a room while replicas are killed, and while Redis is away.
import assert from 'node:assert/strict';
import { LONG, ask, fresh, online, pace, sleep, suite, tally, waitFor } from './harness.mjs';

const patience = 2000;
const { scenario } = suite({ replicas: 3, flags: { patience: `${patience}ms` } });

const range = (n) => Array.from({ length: n }, (_, i) => i);

// listener has the channel and is in the room, and keeps what comes by either.
async function listener(x, i, channel, room) {
  const socket = x.client(i, { user: x.user });
  Object.assign(socket, { channel: [], room: [], begun: [] });
  socket.on('c', (n) => socket.channel.push(n));
  socket.on('r', (n) => socket.room.push(n));
  socket.on('connect', () => socket.begun.push(socket.recovered));
  await online(socket);
  const answers = [await ask(socket, 'channel-subscribe', { channel }), await ask(socket, 'room-join', { room, role: 'member' })];
  for (const a of answers) assert.ok(a.ok, JSON.stringify(a));
  return socket;
}

// publisher sends to the channel and to the room until it is stopped, and keeps the answers.
function publisher(socket, channel, room, every) {
  const sent = { channel: [], room: [] };
  let on = true;
  const running = pace(every, () => !on, (n) => {
    if (!socket.connected) return;
    sent.channel.push(ask(socket, 'channel-publish', { channel, event: 'c', data: n }, 15_000).then((a) => ({ n, ...a })));
    sent.room.push(ask(socket, 'room-emit', { room, event: 'r', data: n }, 15_000).then((a) => ({ n, ...a })));
  });
  return { async stop() { on = false; await running; return { channel: await Promise.all(sent.channel), room: await Promise.all(sent.room) }; } };
}

// all have what was acknowledged, and the same, once and in the same order. What was not acknowledged may be there.
async function settled(listeners, answers) {
  for (const kind of ['channel', 'room']) {
    const acked = answers[kind].filter((a) => a.ok).map((a) => a.n);
    await waitFor(`all have what was acknowledged of the ${kind}`, () => listeners.every((l) => {
      const have = new Set(l[kind]);
      return l.connected && acked.every((n) => have.has(n));
    }), 30_000).catch((err) => {
      throw new Error(`${err.message}: ${listeners.map((l) => `${l[kind].length}/${acked.length} ${l.begun} missing ${acked.filter((n) => !l[kind].includes(n))}`).join('; ')}`);
    });
    await waitFor('all have the same', () => new Set(listeners.map((l) => JSON.stringify(l[kind]))).size === 1);
    for (const l of listeners) {
      assert.equal(new Set(l[kind]).size, l[kind].length, 'nothing twice');
      assert.ok(l.begun.slice(1).every(Boolean), `recovered each time: ${l.begun}`);
    }
    assert.ok(acked.length > 50, tally(answers[kind]));
  }
}

scenario('replicas are killed and started again at random: messages of a channel and a room come once, in one order', async (x) => {
  const { clients, replicas } = await x.alone({ replicas: 3 });
  Object.assign(clients, { user: x.user });
  const [channel, room] = [fresh('chaos'), fresh('room')];
  const listeners = await Promise.all(range(LONG ? 50 : 20).map((i) => listener(clients, i % 3, channel, room)));
  const speaker = await listener(clients, 2, channel, room);
  const publishing = publisher(speaker, channel, room, 50);
  const end = performance.now() + (LONG ? 60_000 : 12_000);
  let kills = 0;
  while (performance.now() < end - 1000) {
    const victim = replicas[Math.floor(Math.random() * 3)];
    await sleep(300 + Math.random() * 1500);
    await victim.kill();
    await sleep(Math.random() * 500);
    await victim.again();
    kills++;
  }
  const answers = await publishing.stop();
  await settled([...listeners, speaker], answers);
  const returns = listeners.reduce((a, l) => a + l.begun.length - 1, 0);
  x.t.diagnostic(`${kills} kills, ${returns} returns, channel ${tally(answers.channel)}, room ${tally(answers.room)}`);
  assert.ok(returns > kills, 'the kills bit');
});

scenario('S1.16 Redis is away for 10 s under load: publications end in time, what was acknowledged comes, and all goes on', async (x) => {
  const { redis, replicas } = x.cluster;
  const pids = replicas.map((r) => r.child.pid);
  const [channel, room] = [fresh('away'), fresh('room')];
  const listeners = await Promise.all(range(9).map((i) => listener(x, i % 3, channel, room)));
  const publishers = [listeners[0], listeners[1]];
  const early = publisher(publishers[0], channel, room, 20);
  await waitFor('messages flow', () => listeners.every((l) => l.channel.length > 20 && l.room.length > 20));
  await redis.kill();
  await sleep(10_000);
  await redis.again();
  const n = listeners[8].channel.length;
  await waitFor('messages flow again', () => listeners.every((l) => l.channel.length > n + 20));
  const answers = await early.stop();
  await settled(listeners, answers);
  for (const kind of ['channel', 'room']) {
    const failed = answers[kind].filter((a) => !a.ok);
    assert.ok(failed.length > 50 && failed.every((a) => a.code === 'STORE_UNAVAILABLE'), `the blackout bit: ${tally(answers[kind])}`);
    const slowest = Math.max(...answers[kind].map((a) => a.ms));
    assert.ok(slowest < patience + 2000, `slowest ${slowest} ms`);
    x.t.diagnostic(`${kind}: ${tally(answers[kind])}, slowest ${slowest} ms`);
  }
  assert.deepEqual(replicas.map((r) => r.child.pid), pids, 'no restart');
  for (const l of listeners) assert.deepEqual(l.ends, [], 'no connection ended');
});
