// Rooms while replicas are killed, stopped, frozen and started again, and while Redis is away or has lost everything.
// The graces are the defaults: what they promise must be enough.
import assert from 'node:assert/strict';
import { ask, drop, fresh, LONG, online, sleep, suite, vanish, waitFor } from './harness.mjs';
import { agree, card, fine, hears, join, leave, neverEmpty, newRoom, owned, peer, peers, refused, room, shows, story, told } from './rooms.mjs';

const patience = 3000;
const { scenario } = suite({ replicas: 3, flags: { patience: `${patience}ms` } });

const settings = { groupId: 'G', vadSettings: { threshold: 0.5 } };
const owners = (c, id) => told(c, id).filter((m) => m.event === 'room-owner');
const left = (c, id) => told(c, id).filter((m) => m.event === 'peer-left' || m.event === 'room-closed');

// furnish makes a room with a host on replica 0, its owner, a guest and a member elsewhere, and settings.
async function furnish(x, id = newRoom()) {
  const all = await peers(x, { host: 0, guest: 1, member: 2 });
  for (const [role, c] of Object.entries(all)) await join(c, id, role, { name: role, meta: { n: role } });
  await fine(all.host, 'room-update', { room: id, settings });
  await fine(all.guest, 'guest-update', { room: id, state: { muted: true } });
  await agree(Object.values(all), id);
  return { id, ...all };
}

const furnished = (state) => {
  assert.deepEqual(state.peers.map((p) => [p.role, p.name, p.meta, p.connected]).sort(), ['guest', 'host', 'member'].map((r) => [r, r, { n: r }, true]));
  assert.deepEqual([state.settings, state.guestState], [settings, { muted: true }]);
};
const whole = (state) => state.peers.length === 3 && state.peers.every((p) => p.connected);

scenario('S2.7 S2.9 the owner is killed: one new owner in time, told once, nobody has left; its return takes nothing back', async (x) => {
  const { id, host, guest, member } = await furnish(x);
  const slow = await peer(x, 0, 'slow', { reconnection: false });
  await join(slow, id, 'member');
  await agree([guest, member], id);
  const [dead, ...rest] = x.cluster.replicas;
  await dead.kill();
  const killed = performance.now();
  const moved = await Promise.all([guest, member].map((c) => hears(c, 'room-owner', 6000)));
  x.t.diagnostic(`the pin moved ${Math.round(performance.now() - killed)} ms after the kill`);
  assert.deepEqual(moved[0], moved[1]);
  assert.ok(rest.some((r) => r.instance === moved[0].owner.instance && r.url === moved[0].owner.url), JSON.stringify(moved[0]));
  // Who has come back before anybody knew of the loss was never away; who has not is, by the same event.
  for (const c of [guest, member]) {
    const away = await hears(c, (m) => m.event === 'peer-away' && m.peer === 'slow');
    assert.deepEqual([away.version, away.previous, away.reason], [moved[0].version, moved[0].previous, 'replica-lost']);
  }
  const back = await peer(x, 1, 'slow');
  await online(host);
  for (const c of [guest, member]) await hears(c, (m) => m.event === 'peer-back' && m.peer === 'slow');
  await leave(back, id);
  furnished(await agree([host, guest, member], id));

  // Started again under its name, it declares its former life lost; the room belongs to another by now.
  await dead.again();
  const late = await peer(x, 0, 'late');
  assert.equal((await join(late, id, 'monitor')).here, false);
  assert.deepEqual((await agree([host, guest, member, late], id)).owner, moved[0].owner);
  for (const c of [guest, member]) {
    assert.equal(owners(c, id).length, 1);
    assert.deepEqual(left(c, id).map((m) => m.peer), ['slow']);
    const words = story(c, id, 'host').map((s) => s.split(' ')[0]).filter((w) => w !== 'peer-joined');
    assert.ok([[], ['peer-away', 'peer-back']].some((w) => w.join() === words.join()), words.join());
    assert.deepEqual(c.ends, []);
  }
  neverEmpty(host, guest, member);
});

scenario('S2.7 the owner is stopped: its rooms move before it ends, each in one event, and nobody has left', async (x) => {
  const rooms = [await furnish(x)];
  const { host, guest, member } = rooms[0];
  const more = Array.from({ length: 20 }, newRoom);
  for (const id of more) for (const c of [host, member]) await join(c, id, 'member');
  const ids = [rooms[0].id, ...more];
  const [stopping] = x.cluster.replicas;
  let ended = false;
  const end = stopping.end().then((how) => { ended = true; return how; });
  await waitFor('every room has moved', () => ids.every((id) => owners(member, id).length));
  assert.equal(ended, false, 'while it still serves its clients');
  assert.deepEqual(await end, { code: 0, signal: null });
  await waitFor('the host is elsewhere', () => host.ends.length && host.connected);
  for (const id of ids) {
    const state = await agree([host, member], id);
    assert.notEqual(state.owner.instance, stopping.instance);
    assert.equal(owners(member, id).length, 1);
    assert.deepEqual(left(member, id), []);
  }
  assert.equal(new Set(ids.map((id) => owners(member, id)[0].version)).size, 1, 'one event for all');
  furnished(await agree([host, guest, member], rooms[0].id));
  // Who was at the stopped replica heard of it all the same.
  assert.deepEqual(host.heard.filter((m) => m.event === 'room-owner' || m.event === 'server-draining').map((m) => m.event).slice(0, 2).sort(), ['room-owner', 'server-draining']);
  neverEmpty(host, guest, member);
});

scenario('S2.8 the owner is frozen beyond its lease and wakes up: there is no second owner', async (x) => {
  const { id, host, guest, member } = await furnish(x);
  const [frozen] = x.cluster.replicas;
  frozen.freeze();
  const moved = await hears(guest, 'room-owner', 8000);
  const fromThere = ask(host, 'room-update', { room: id, settings: { stale: true } }, 20_000);
  await sleep(1000);
  frozen.thaw();
  const stale = await fromThere;
  await frozen.ready();
  await waitFor('the host is back', () => host.connected && host.ends.length);
  await shows(host, id, whole);
  const state = await agree([host, guest, member], id);
  assert.deepEqual(state.owner, moved.owner);
  assert.equal(state.settings.stale === true, stale.ok === true, JSON.stringify([stale, state.settings]));
  for (const c of [guest, member]) {
    assert.equal(owners(c, id).length, 1);
    assert.deepEqual(left(c, id), []);
  }
  // Both races of joins and the one that slept agree on every room.
  const all = [host, guest, member];
  for (let n = 0; n < 5; n++) {
    const one = newRoom();
    const acks = await Promise.all(all.map((c) => join(c, one, 'member')));
    assert.equal(new Set(acks.map((a) => a.room.owner.instance)).size, 1);
  }
});

scenario('S2.6 Redis goes away while rooms are made: no join is answered with an owner that others do not know', async (x) => {
  const clients = await Promise.all([0, 1, 2, 0, 1, 2].map((i, n) => peer(x, i, `p${n}`)));
  const answers = new Map();
  const loops = clients.map((c) => x.loop(async (n) => {
    const id = `${x.user}-room-${Math.floor(n / 2)}`;
    const a = await ask(c, 'room-join', { room: id }, 3 * patience);
    if (a.ok) answers.set(id, [...(answers.get(id) ?? []), a.room.owner?.instance]);
    else await sleep(100);
    return a;
  }, { every: 20 }));
  await waitFor('rooms are made', () => answers.size > 5);
  await x.cluster.redis.kill();
  const refusals = await Promise.all(clients.map((c) => ask(c, 'room-join', { room: newRoom() }, 3 * patience)));
  for (const a of refusals) assert.equal(a.code, 'STORE_UNAVAILABLE', JSON.stringify(a));
  await x.cluster.redis.again();
  const before = answers.size;
  await waitFor('rooms are made again', () => answers.size > before);
  const results = (await Promise.all(loops.map((l) => l.stop()))).flat();
  for (const a of results) assert.ok(a.ok || ['STORE_UNAVAILABLE', 'TOO_MANY'].includes(a.code), JSON.stringify(a));
  for (const [id, seen] of answers) assert.deepEqual([...new Set(seen)].length, 1, `${id}: ${seen}`);
  for (const c of clients) for (const id of [...answers.keys()].slice(0, 3)) {
    const state = await ask(c, 'room-get', { room: id });
    if (state.ok) assert.equal(state.room.owner.instance, answers.get(id)[0]);
  }
});

scenario('S2.10 the guest loads its page anew, with either order of the two connections: its card stays, and it never leaves', async (x) => {
  const id = newRoom();
  const { host } = await peers(x, { host: 0 });
  await join(host, id, 'host');
  let before;
  for (let n = 0; n < 8; n++) {
    // Even: the former page ends first, kindly or not. Odd: it ends late, after the new one has come.
    if (before && n % 2 === 0) { if (n % 4) before.disconnect(); else vanish(before); }
    const guest = await peer(x, n % 3, 'guest');
    if (before) assert.equal(card(await room(guest, id), 'guest').role, 'guest', 'the seat was kept');
    await join(guest, id, 'guest', { name: `g${n}` });
    const seen = await shows(host, id, (s) => card(s, 'guest')?.name === `g${n}`);
    assert.equal(card(seen, 'guest').connected, true);
    if (before && n % 2) { if (n % 4 === 1) before.disconnect(); else vanish(before); }
    before = guest;
  }
  await agree([host, before], id);
  const words = story(host, id, 'guest').map((s) => s.split(' ')[0]);
  assert.ok(!words.includes('peer-left'), words.join());
  assert.equal(words.filter((w) => w === 'peer-away').length, words.filter((w) => w === 'peer-back').length, words.join());
});

scenario('S2.21 all replicas are killed and started again: rooms, their people and settings, and the cluster\'s settings are as before', async (x) => {
  const { id, host, guest, member } = await furnish(x);
  const early = newRoom();
  const key = fresh('ambientNoiseEnabled');
  await fine(host, 'room-update', { room: early, settings: { groupId: 'early' } });
  await fine(guest, 'settings-set', { key, value: { on: true } });
  await Promise.all(x.cluster.replicas.map((r) => r.kill()));
  await x.cluster.whole();
  await Promise.all([host, guest, member].map((c) => online(c)));
  for (const c of [host, guest, member]) await shows(c, id, whole);
  const states = await Promise.all([host, guest, member].map((c) => room(c, id)));
  for (const state of states) { owned(state); furnished(state); assert.deepEqual(state, states[0]); }
  for (const c of [host, guest, member]) {
    assert.deepEqual(left(c, id), []);
    assert.deepEqual((await fine(c, 'settings-get', { key })).settings, { [key]: { on: true } });
  }
  assert.deepEqual((await join(member, early, 'member')).room.settings, { groupId: 'early' });
  neverEmpty(host, guest, member);
});

scenario('Redis is emptied: rooms, seats and settings are restored without the clients\' help', async (x) => {
  const { id, host, guest, member } = await furnish(x);
  const key = fresh('setting');
  await fine(guest, 'settings-set', { key, value: 1 });
  const early = newRoom();
  await fine(host, 'room-update', { room: early, settings: { groupId: 'early' } });
  for (let round = 0; round < (LONG ? 10 : 2); round++) {
    assert.equal(await x.cluster.redis.reply('FLUSHALL'), '+OK');
    await sleep(5000); // lasting: before the replicas notice, everything still looks well
    for (const c of [host, guest, member]) await shows(c, id, whole);
    const states = await Promise.all([host, guest, member].map((c) => room(c, id)));
    for (const state of states) { owned(state); furnished(state); assert.deepEqual(state, states[0]); }
    for (const c of [host, guest, member]) assert.deepEqual((await fine(c, 'settings-get', { key })).settings, { [key]: 1 });
    // What was restored is obeyed.
    await refused('SEAT_TAKEN', member, 'room-join', { room: id, role: 'host' });
    await fine(host, 'room-update', { room: id, settings: { round } });
    await fine(host, 'room-update', { room: id, settings: { round: null } });
    await fine(guest, 'guest-update', { room: id, state: { muted: true } });
  }
  assert.deepEqual((await join(member, early, 'member')).room.settings, { groupId: 'early' });
  for (const c of [host, guest, member]) {
    assert.deepEqual(c.ends, [], 'no client noticed');
    assert.deepEqual(left(c, id), []);
  }
});

scenario('S1.24 a stale disconnect never shows a peer offline while a newer connection lives', async (x) => {
  const watchers = await Promise.all([0, 1, 2].map((i) => peer(x, i, `w${i}`)));
  const { a } = await peers(x, { a: 0 });
  let now = a;
  for (let n = 1; n <= 6; n++) {
    const next = await peer(x, n % 3, 'a');
    if (n % 3 === 0) now.disconnect(); else if (n % 3 === 1) vanish(now); // or the server ends it
    now = next;
    for (const w of watchers) await waitFor('it is shown where it is', async () => {
      const one = (await fine(w, 'presence-get', {})).peers.find((p) => p.peer === 'a');
      assert.equal(one.connected, true, JSON.stringify(one));
      return one.instance === x.cluster.replicas[n % 3].instance;
    });
  }
  drop(now);
  await waitFor('it is back', () => now.ends.length && now.connected);
  await sleep(11_000); // the grace of every end
  for (const w of watchers) {
    const said = w.heard.filter((m) => m.event === 'presence' && m.peer === 'a');
    assert.deepEqual(said.map((m) => m.connected), [true], JSON.stringify(said));
    const one = (await fine(w, 'presence-get', {})).peers.find((p) => p.peer === 'a');
    assert.deepEqual([one.connected, one.away], [true, undefined]);
  }
});
