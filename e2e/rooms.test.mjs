// Who is in a room: joins, moves, comings and goings, while every replica lives.
import assert from 'node:assert/strict';
import { ask, drop, LONG, sleep, suite, vanish, waitFor } from './harness.mjs';
import { agree, card, chained, fine, hears, join, leave, neverEmpty, newRoom, owned, peer, peers, refused, room, shows, story, told } from './rooms.mjs';

const peerGrace = 2000;
const roomGrace = 1500;
const { scenario } = suite({ replicas: 3, flags: { 'peer-grace': `${peerGrace}ms`, 'room-grace': `${roomGrace}ms` } });

const instances = (x) => x.cluster.replicas.map((r) => r.instance);

scenario('S2.8 peers join new rooms through three replicas at once: each room has one owner, the same everywhere', async (x) => {
  const all = await Promise.all(Array.from({ length: 12 }, (_, n) => peer(x, n % 3, `p${n}`)));
  for (let round = 0; round < (LONG ? 100 : 8); round++) {
    const id = newRoom();
    const acks = await Promise.all(all.map((c) => join(c, id, 'member')));
    const owners = new Set(acks.map((a) => a.room.owner.instance));
    assert.equal(owners.size, 1, [...owners].join());
    const [owner] = owners;
    acks.forEach((a, n) => {
      owned(a.room);
      assert.equal(a.room.owner.url, x.cluster.replicas[instances(x).indexOf(owner)].url);
      assert.equal(a.here, instances(x)[n % 3] === owner, `${n} is at ${instances(x)[n % 3]}`);
    });
    const state = await agree(all, id);
    assert.equal(state.owner.instance, owner);
    assert.equal(state.peers.length, 12);
    for (const c of all) await leave(c, id);
  }
  neverEmpty(...all);
});

scenario('S2.3 a join by who is there already is a success, and the pin stays', async (x) => {
  const id = newRoom();
  const { a, b } = await peers(x, { a: 0, b: 1 });
  const first = await join(a, id, 'host');
  assert.equal(first.here, true);
  await join(b, id, 'guest');
  for (let n = 0; n < 5; n++) {
    const again = await join(a, id, 'host');
    assert.equal(again.here, true);
    assert.deepEqual(again.room.owner, first.room.owner);
    const other = await join(b, id, 'guest');
    assert.equal(other.here, false);
    assert.deepEqual(other.room.owner, first.room.owner);
  }
  await agree([a, b], id);
  assert.deepEqual(story(a, id), ['peer-joined a', 'peer-joined b'], 'a repeated join changes nothing');
});

scenario('S2.4 a client is served where it is: at the owner, at another replica, and with the name of another one in its URL', async (x) => {
  const id = newRoom();
  const { owner } = await peers(x, { owner: 0 });
  await join(owner, id, 'host');
  const clients = await Promise.all([0, 1, 2].flatMap((at) => instances(x).map((named) => peer(x, at, `at-${at}-for-${named}`, { query: { instance: named } }))));
  for (const c of clients) {
    const ack = await join(c, id, 'member');
    assert.equal(ack.here, c.at === 0, 'where it is, not where it wished to be');
    assert.equal(ack.room.owner.instance, instances(x)[0]);
  }
  await agree([owner, ...clients], id);
  for (const c of [owner, ...clients]) assert.deepEqual([c.ends, c.refusals], [[], []], 'nobody was sent away');
});

scenario('S2.8 peers race for a seat: one gets it, the others are told that it is taken', async (x) => {
  const all = await Promise.all([0, 1, 2, 0, 1, 2].map((i, n) => peer(x, i, `p${n}`)));
  for (let round = 0; round < (LONG ? 100 : 8); round++) {
    const id = newRoom();
    const role = round % 2 ? 'host' : 'guest';
    const acks = await Promise.all(all.map((c) => ask(c, 'room-join', { room: id, role })));
    const winners = all.filter((_, n) => acks[n].ok);
    assert.equal(winners.length, 1, JSON.stringify(acks.map((a) => a.code ?? 'ok')));
    for (const a of acks) assert.ok(a.ok || a.code === 'SEAT_TAKEN', JSON.stringify(a));
    const state = await room(winners[0], id);
    assert.deepEqual(state.peers.map((p) => [p.peer, p.role]), [[winners[0].peer, role]]);
    // Who has left leaves a free seat, at once and for every replica.
    await leave(winners[0], id);
    const next = all[(all.indexOf(winners[0]) + 1) % all.length];
    await join(next, id, role);
    await refused('SEAT_TAKEN', winners[0], 'room-join', { room: id, role });
    await leave(next, id);
  }
});

scenario('S2.11 a peer is taken over by a new connection: the old one is told, its late end changes nothing, and the peer leaves once', async (x) => {
  const id = newRoom();
  const w = Object.values(await peers(x, { w0: 0, w1: 1, w2: 2 }));
  for (const c of w) await join(c, id, 'member');
  const names = ['host', 'guest', 'member'];
  const taken = await Promise.all(names.map(async (name, n) => {
    const old = await peer(x, n, name);
    await join(old, id, name, { name: 'Old' });
    const now = await peer(x, (n + 1) % 3, name);
    await waitFor('the old connection is ended', () => !old.connected, 3000);
    assert.ok(old.heard.some((m) => m.event === 'peer-replaced'));
    assert.deepEqual(old.ends, ['io server disconnect']);
    old.close();
    // The seat is the peer's: it is there without having been asked for.
    assert.equal(card(await room(now, id), name).role, name);
    await join(now, id, name, { name: 'New' });
    return now;
  }));
  await fine(taken[0], 'room-update', { room: id, settings: { by: 'host' } });
  await sleep(peerGrace + 500); // that of the old ones, were there any
  const state = await agree([...w, ...taken], id);
  names.forEach((name, n) => {
    assert.deepEqual([card(state, name).connected, card(state, name).name, card(state, name).instance], [true, 'New', instances(x)[(n + 1) % 3]]);
    for (const c of w) assert.deepEqual(story(c, id, name), [`peer-joined ${name}`, `peer-joined ${name}`], 'neither away nor left');
  });
  for (const c of taken) vanish(c);
  for (const c of w) for (const name of names) await hears(c, (m) => m.event === 'peer-left' && m.peer === name);
  await agree(w, id);
  for (const c of w) for (const name of names) assert.equal(told(c, id, name).filter((m) => m.event === 'peer-left').length, 1);
});

scenario('away, back and left come once each, in one order and without gaps, to clients on every replica', async (x) => {
  const id = newRoom();
  const w = Object.values(await peers(x, { w0: 0, w1: 1, w2: 2 }));
  await join(w[0], id, 'host');
  await join(w[1], id, 'member');
  await join(w[2], id, 'monitor');
  const { a, b } = await peers(x, { a: 1, b: 2 });
  await join(a, id, 'guest', { name: 'Ann', meta: { n: 1 } });
  await join(b, id, 'member');
  const said = (event, n) => Promise.all(w.map((c) => waitFor(`${event} is said`, () => told(c, id, 'a').filter((m) => m.event === event).length === n)));
  for (let n = 1; n <= 2; n++) {
    // It stays away until that is known: else it might take over from itself, and never have been away.
    a.io.reconnection(false);
    drop(a);
    await said('peer-away', n);
    a.at = (a.at + 1) % 3;
    a.io.uri = x.urls[a.at];
    a.io.reconnection(true);
    a.connect();
    await said('peer-back', n);
  }
  b.disconnect();
  await Promise.all(w.map((c) => hears(c, (m) => m.event === 'peer-left' && m.peer === 'b')));
  await leave(a, id);
  const state = await agree(w, id);
  assert.deepEqual(state.peers.map((p) => p.peer), ['w0', 'w1', 'w2']);
  for (const c of w) {
    assert.deepEqual(story(c, id, 'a').map((s) => s.split(':')[0]), ['joined', 'away', 'back', 'away', 'back', 'left'].map((s) => `peer-${s} a`));
    assert.deepEqual(story(c, id, 'b').map((s) => s.split(':')[0]), ['joined', 'away', 'left'].map((s) => `peer-${s} b`));
    assert.equal(told(c, id, 'a').at(-1).reason, 'left');
    assert.equal(told(c, id, 'b').at(-1).reason, 'timeout');
    const tail = (o) => told(o, id).slice(-8);
    assert.deepEqual(tail(c), tail(w[0]), 'the same words everywhere');
    const joined = told(c, id, 'a')[0];
    assert.deepEqual([joined.user, joined.role, joined.name, joined.meta, joined.connected], [x.user, 'guest', 'Ann', { n: 1 }, true]);
  }
});

scenario('S2.12 a seat is vacated by its own holder only, or when its grace has passed', async (x) => {
  const id = newRoom();
  const { host, other, next } = await peers(x, { host: 0, other: 1, next: 2 });
  await join(host, id, 'host');
  await join(other, id, 'guest');
  const outsider = await peer(x, 1, 'outsider');
  for (const c of [other, outsider, next]) await refused('SEAT_TAKEN', c, 'room-join', { room: id, role: 'host' });
  await leave(outsider, id);
  outsider.disconnect();
  await leave(other, id);
  other.disconnect();
  await refused('SEAT_TAKEN', next, 'room-join', { room: id, role: 'host' });
  await join(next, id, 'guest');
  vanish(host);
  await hears(next, 'peer-away');
  await refused('SEAT_TAKEN', next, 'room-join', { room: id, role: 'host' });
  const left = await hears(next, (m) => m.event === 'peer-left' && m.peer === 'host');
  assert.equal(left.reason, 'timeout');
  await join(next, id, 'host');
  assert.deepEqual((await agree([next], id)).peers.map((p) => [p.peer, p.role]), [['next', 'host']]);
});

scenario('S2.13 a peer joins while the last one leaves: the room stays open', async (x) => {
  const id = newRoom();
  const { a, b, watch } = await peers(x, { a: 0, b: 1, watch: 2 });
  await join(a, id, 'host');
  await join(watch, id, 'monitor');
  for (let n = 0; n < (LONG ? 200 : 20); n++) {
    const [from, to] = n % 2 ? [b, a] : [a, b];
    await Promise.all([leave(from, id), join(to, id, to === a ? 'host' : 'guest')]);
    const state = await room(to, id);
    owned(state);
    assert.ok(card(state, to.peer)?.connected, JSON.stringify(state));
  }
  await sleep(roomGrace + 500); // the grace of every leave
  const state = await agree([watch, a], id);
  assert.deepEqual(state.peers.map((p) => p.peer).sort(), ['a', 'watch']);
  assert.ok(!story(watch, id).some((s) => s.startsWith('room-closed')));
});

scenario('S2.13 peers join as the grace of the empty room ends: it stays open or opens anew, and is never closed under one of them', async (x) => {
  const { a, b } = await peers(x, { a: 0, b: 1 });
  for (let n = 0; n < 4; n++) {
    const id = newRoom();
    await join(a, id, 'host');
    await leave(a, id);
    await sleep(roomGrace - 60 + 40 * n);
    await Promise.all([join(a, id, 'guest'), join(b, id, 'member')]);
    const state = await agree([a, b], id);
    assert.deepEqual(state.peers.map((p) => p.peer).sort(), ['a', 'b']);
    assert.ok(![...told(a, id), ...told(b, id)].some((m) => m.event === 'room-closed'));
    for (const c of [a, b]) await leave(c, id);
  }
});

scenario('an empty room closes after its grace; monitors do not hold it open, members do', async (x) => {
  const id = newRoom();
  const { host, member, m1, m2 } = await peers(x, { host: 0, member: 1, m1: 1, m2: 2 });
  await join(host, id, 'host');
  await fine(host, 'room-update', { room: id, settings: { groupId: 'G' } });
  for (const c of [m1, m2]) await join(c, id, 'monitor');
  await join(member, id, 'member');
  await leave(host, id);
  await sleep(roomGrace + 500);
  assert.equal((await room(m1, id)).open, true, 'a member holds it open');
  await leave(member, id);
  for (const c of [m1, m2]) {
    const closed = await hears(c, 'room-closed');
    assert.equal(closed.reason, 'empty');
    assert.equal(told(c, id).filter((m) => m.event === 'room-closed').length, 1);
    chained(c, id);
    await refused('FORBIDDEN', c, 'room-get', { room: id });
  }
  assert.deepEqual((await join(host, id, 'host')).room.settings, {}, 'it is a new room');
});

scenario('S2.18 a peer that moves leaves no trace where it was, in one event, and what it does not name is cleared', async (x) => {
  const ids = [newRoom(), newRoom()];
  const w = Object.values(await peers(x, { w0: 0, w1: 1 }));
  for (const [n, id] of ids.entries()) await join(w[n], id, 'member');
  const { a, watcher } = await peers(x, { a: 2, watcher: 0 });
  await fine(watcher, 'rooms-watch', {});
  await join(a, ids[1], 'host', { name: 'Ann', meta: { n: 0 } });
  for (let n = 0; n < 8; n++) {
    const [to, from] = n % 2 ? [1, 0] : [0, 1];
    const ack = await join(a, ids[to], n % 2 ? 'guest' : 'host', n % 2 ? {} : { name: 'Ann', meta: { n } });
    const mine = card(ack.room, 'a');
    assert.deepEqual([mine.role, mine.name, mine.meta], n % 2 ? ['guest', undefined, undefined] : ['host', 'Ann', { n }]);
    await refused('FORBIDDEN', a, 'room-get', { room: ids[from] });
    await waitFor('both rooms show it', () => told(w[from], ids[from], 'a').at(-1)?.reason === 'moved' && told(w[to], ids[to], 'a').at(-1)?.event === 'peer-joined');
    assert.equal(told(w[from], ids[from], 'a').at(-1).version, told(w[to], ids[to], 'a').at(-1).version, 'one event');
    assert.equal(card(await room(w[from], ids[from]), 'a'), undefined);
    assert.deepEqual({ ...card(await room(w[to], ids[to]), 'a') }, mine);
    // Its seats are free in the one, and taken in the other.
    for (const role of ['host', 'guest']) {
      const { other } = await peers(x, { other: n % 3 });
      await join(other, ids[from], role);
      await leave(other, ids[from]);
      other.close();
    }
    assert.ok(told(a, ids[to]).at(-1).event === 'peer-joined');
  }
  for (const [n, id] of ids.entries()) {
    const count = n === 1 ? 2 : 1;
    await shows(w[n], id, (s) => s.peers.length === count); // the others have left through other replicas
    const { version } = await agree([w[n]], id);
    const summary = await hears(watcher, (m) => m.event === 'rooms-changed' && m.room.id === id && m.room.version === version);
    assert.equal(summary.room.peerCount, count);
  }
});

scenario('S2.18 several monitors and rooms: a peer is host or guest in one, monitor in many', async (x) => {
  const ids = [newRoom(), newRoom(), newRoom()];
  const { a, b } = await peers(x, { a: 0, b: 1 });
  for (const id of ids) await join(b, id, 'member');
  await join(a, ids[0], 'monitor');
  await join(a, ids[1], 'monitor');
  await join(a, ids[2], 'host');
  await join(a, ids[0], 'guest');
  const roles = (...wanted) => Promise.all(ids.map((id, n) => shows(b, id, (s) => card(s, 'a')?.role === wanted[n])));
  await roles('guest', 'monitor', undefined);
  await join(a, ids[2], 'monitor');
  await join(a, ids[1], 'host');
  await roles(undefined, 'host', 'monitor');
  for (const id of ids) await agree([b], id);
});

scenario('S2.19 joining anew without the optional fields clears them, and what a former page monitored', async (x) => {
  const [id, watched, again] = [newRoom(), newRoom(), newRoom()];
  const { w, first } = await peers(x, { w: 1, first: 0 });
  for (const one of [id, watched, again]) await join(w, one, 'member');
  await join(first, watched, 'monitor');
  await join(first, id, 'guest', { name: 'Ann', meta: { a: 1 } });
  const named = card(await shows(w, id, (s) => card(s, 'first')), 'first');
  assert.deepEqual([named.name, named.meta], ['Ann', { a: 1 }]);
  await join(first, id, 'guest');
  await waitFor('they are cleared', () => told(w, id, 'first').length === 2);
  const plain = card(await room(w, id), 'first');
  assert.deepEqual([plain.name, plain.meta], [undefined, undefined]);
  assert.deepEqual(['name' in told(w, id, 'first')[1], 'meta' in told(w, id, 'first')[1]], [false, false]);
  assert.equal(card(await room(w, watched), 'first').role, 'monitor', 'the same page still watches');

  const reloaded = await peer(x, 2, 'first');
  await join(reloaded, id, 'guest', { name: 'Bea' });
  assert.equal(card(await room(reloaded, id), 'first').name, 'Bea');
  await waitFor('it does not watch', () => told(w, watched, 'first').at(-1).event === 'peer-left');
  assert.equal(card(await room(w, watched), 'first'), undefined);
  await refused('FORBIDDEN', reloaded, 'room-get', { room: watched });
  await join(reloaded, again, 'monitor');
  assert.equal(card(await room(reloaded, id), 'first').role, 'guest');
});

scenario('S2.20 cleanup touches only who is there: nobody hears of one that has left, was never in, or was in a closed room', async (x) => {
  const [id, closed] = [newRoom(), newRoom()];
  const { w, host, gone, never } = await peers(x, { w: 0, host: 1, gone: 2, never: 0 });
  await join(w, id, 'member');
  await join(gone, id, 'guest');
  await leave(gone, id);
  await leave(gone, id);
  await join(host, closed, 'host');
  await join(never, closed, 'guest');
  await fine(host, 'room-close', { room: closed });
  assert.equal((await hears(never, 'room-closed')).reason, 'closed');
  assert.ok(!told(never, closed).some((m) => m.event === 'peer-left'), 'a closing is one push');
  for (const c of [gone, host, never]) c.close();
  await sleep(peerGrace + 1000);
  await agree([w], id);
  assert.deepEqual(story(w, id), ['peer-joined w', 'peer-joined gone', 'peer-left gone: left']);
  const back = await peer(x, 2, 'gone');
  await join(back, id, 'guest');
  assert.deepEqual(told(w, closed), []);
});

scenario('S2.23 the host\'s authority follows its identity, not its connection', async (x) => {
  const id = newRoom();
  const { host, guest } = await peers(x, { host: 0, guest: 1 });
  await join(host, id, 'host');
  await join(guest, id, 'guest');
  drop(host);
  await waitFor('it is back elsewhere', () => host.ends.length && host.connected);
  await fine(host, 'room-update', { room: id, settings: { n: 1 } });
  const page = await peer(x, 2, 'host');
  await fine(page, 'room-update', { room: id, settings: { n: 2 } });
  await waitFor('the former page is ended', () => !host.connected);
  const stranger = await peer(x, 0, 'host', {}, `${x.user}-other`);
  await refused('FORBIDDEN', stranger, 'room-update', { room: id, settings: { n: 3 } });
  await refused('FORBIDDEN', stranger, 'room-close', { room: id });
  await refused('FORBIDDEN', guest, 'room-close', { room: id });
  assert.deepEqual((await agree([page, guest], id)).settings, { n: 2 });
  await fine(page, 'room-close', { room: id });
  await hears(guest, 'room-closed');
});

scenario('S2.24 many members join one room at once through three replicas: all get in', async (x) => {
  const id = newRoom();
  const count = LONG ? 2000 : 150;
  const all = [];
  for (let n = 0; n < count; n += 50) all.push(...await Promise.all(Array.from({ length: Math.min(50, count - n) }, (_, k) => x.caller((n + k) % 3, x.user, { peer: `p${n + k}` }))));
  let heard = 0;
  for (const c of all) c.on('peer-joined', () => heard++);
  const began = performance.now();
  const acks = await Promise.all(all.map((c) => ask(c, 'room-join', { room: id }, 120_000)));
  x.t.diagnostic(`${count} joins took ${Math.round(performance.now() - began)} ms`);
  assert.deepEqual(acks.filter((a) => !a.ok), []);
  assert.equal(new Set(acks.map((a) => a.room.owner.instance)).size, 1);
  for (const c of all.slice(0, 3)) await waitFor('all are there', async () => (await room(c, id)).peers.length === count, 60_000);
  await waitFor('each hears of itself and of who came later', () => heard === (count * (count + 1)) / 2, 60_000);
  for (const c of all) assert.deepEqual(c.ends, []);
});
