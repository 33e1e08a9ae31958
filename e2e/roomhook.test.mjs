// The room hook, from outside: what it hears of a room when the room's owner is killed, paused or stopped.
import assert from 'node:assert/strict';
import { createHmac, timingSafeEqual } from 'node:crypto';
import http from 'node:http';
import { after } from 'node:test';
import { ask, fresh, suite, waitFor } from './harness.mjs';

const key = 'a secret of the media server';

// The receiver does what docs/operations.md tells receivers to do: check the signature, drop what it has had, refuse
// what has a lower token than it knows. What it was sent is kept as it came, to see whether it ever had to refuse.
const media = { sent: [], rooms: new Map(), refused: [], duplicates: 0, down: false, missed: new Set() };
const later = (a, b) => { // is token a later than b?
  const [x, y] = [a, b].map((t) => t.split('-').map(BigInt));
  return x[0] > y[0] || (x[0] === y[0] && x[1] > y[1]);
};
function genuine(header, body) {
  const { t, v1 } = Object.fromEntries(header.split(',').map((part) => part.split('=')));
  const want = createHmac('sha256', key).update(`${t}.${body}`).digest();
  return Math.abs(Date.now() / 1000 - t) < 300 && timingSafeEqual(Buffer.from(v1, 'hex'), want);
}
function receive(call) {
  const room = media.rooms.get(call.room) ?? { had: new Set(), open: false, token: '0-0', story: [] };
  media.rooms.set(call.room, room);
  if (room.had.has(call.id)) { media.duplicates++; return; }
  if (later(room.token, call.token)) { media.refused.push({ call, known: room.token }); return; }
  room.had.add(call.id);
  const begins = call.event === 'opened' || call.event === 'moved-here';
  assert.notEqual(begins, room.open, `${call.event} of ${call.token} after ${JSON.stringify(room.story)}`);
  assert.ok(begins ? later(call.token, room.token) : call.token === room.token, `${call.event} of ${call.token} after ${room.token}`);
  room.open = begins;
  room.token = call.token;
  room.story.push(`${call.event} ${call.instance}`);
}
const failures = [];
const server = http.createServer(async (req, res) => {
  let body = '';
  for await (const chunk of req) body += chunk;
  if (media.down) { media.missed.add(JSON.parse(body).room); res.writeHead(503).end(); return; }
  try {
    assert.ok(genuine(req.headers['holdfast-signature'], body), 'the signature');
    media.sent.push(JSON.parse(body));
    receive(JSON.parse(body));
  } catch (err) { failures.push(err.message); }
  res.end();
});
await new Promise((done) => server.listen(0, '127.0.0.1', done));
after(() => { server.closeAllConnections(); server.close(); });

const flags = { 'room-hook': `http://127.0.0.1:${server.address().port}/rooms`, 'room-hook-key': key, 'peer-grace': '2s', 'room-grace': '1s' };
const { scenario } = suite({ flags });
const story = (room) => media.rooms.get(room)?.story ?? [];
const hears = (room, want, within = 20_000) => waitFor(`of ${room} the hook hears ${want}`, () => {
  assert.deepEqual(failures, []);
  return JSON.stringify(story(room)) === JSON.stringify(want);
}, within).catch((err) => { throw new Error(`${err.message}; it has heard ${story(room)}`); });

async function join(x, i, room, role = 'member') {
  const socket = await x.caller(i, x.user, { peer: fresh('peer') });
  const joined = await ask(socket, 'room-join', { room, role });
  assert.ok(joined.ok, JSON.stringify(joined));
  return { socket, owner: joined.room.owner };
}

scenario('S2.7 the owner of a room is killed: the hook hears its end before the next owner\'s beginning', async (x) => {
  const [a, b] = x.cluster.replicas.map((r) => r.instance);
  const room = fresh('room');
  await join(x, 0, room);
  await hears(room, [`opened ${a}`]);
  await join(x, 1, room);
  const stranded = fresh('stranded'); // opened and told while the hook is away, its owner killed
  media.down = true;
  await join(x, 0, stranded);
  await join(x, 1, stranded);
  await waitFor('its owner has tried to tell of it', () => media.missed.has(stranded));
  await x.cluster.replicas[0].kill();
  media.down = false;
  await hears(room, [`opened ${a}`, `moved-away ${a}`, `moved-here ${b}`]);
  await waitFor('the other room is begun at b', () => story(stranded).at(-1)?.endsWith(` ${b}`));
  assert.ok(['moved-here', 'opened'].includes(story(stranded).at(-1).split(' ')[0]), `${story(stranded)}`);
  const urls = media.sent.filter((c) => c.room === room).map((c) => c.url);
  assert.deepEqual([...new Set(urls)], [x.cluster.replicas[0].url, x.cluster.replicas[1].url]);
});

scenario('S2.7 the owner is paused, its rooms move, it goes on: it tells the hook nothing that is out of date', async (x) => {
  const [a, b] = x.cluster.replicas.map((r) => r.instance);
  const rooms = Array.from({ length: 10 }, () => fresh('room'));
  media.down = true; // so that the owner is paused with calls to make
  const sockets = [];
  for (const room of rooms) {
    sockets.push((await join(x, 0, room)).socket);
    await join(x, 1, room);
  }
  x.cluster.replicas[0].freeze();
  media.down = false;
  await waitFor('all rooms are begun at b', () => rooms.every((room) => story(room).at(-1)?.endsWith(` ${b}`)), 30_000);
  const before = media.sent.length;
  x.cluster.replicas[0].thaw();
  await x.cluster.replicas[0].ready();
  const next = fresh('next');
  await join(x, 0, next);
  await hears(next, [`opened ${a}`]);
  const late = media.sent.slice(before).filter((c) => rooms.includes(c.room) && c.instance === a);
  assert.deepEqual(late, [], 'calls of the paused owner after it went on');
  assert.deepEqual(media.refused, []);
});

scenario('the owner closes a room and is killed at once, or drains: nothing stays open', async (x) => {
  const [a, b] = x.cluster.replicas.map((r) => r.instance);
  const closed = fresh('closed');
  const host = (await join(x, 0, closed, 'host')).socket;
  await hears(closed, [`opened ${a}`]);
  media.down = true;
  assert.ok((await ask(host, 'room-close', { room: closed })).ok);
  await x.cluster.replicas[0].kill();
  media.down = false;
  await hears(closed, [`opened ${a}`, `closed ${a}`], 40_000);

  await x.cluster.replicas[0].again();
  const moving = fresh('moving');
  const { socket } = await join(x, 1, moving);
  await hears(moving, [`opened ${b}`]);
  await x.cluster.replicas[1].end();
  await hears(moving, [`opened ${b}`, `moved-away ${b}`, `moved-here ${a}`]);
  socket.close();
  await hears(moving, [`opened ${b}`, `moved-away ${b}`, `moved-here ${a}`, `closed ${a}`]);
  assert.deepEqual(failures, []);
});
