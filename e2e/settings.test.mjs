// Settings of rooms and of the cluster, guest state, and presence: who writes where, and who sees it when.
import assert from 'node:assert/strict';
import { ask, drop, fresh, LONG, noFailure, sleep, suite, vanish, waitFor } from './harness.mjs';
import { agree, fine, hears, join, later, leave, newRoom, peer, peers, refused, room, shows, told } from './rooms.mjs';

const peerGrace = 2000;
const { scenario } = suite({ replicas: 3, flags: { 'peer-grace': `${peerGrace}ms`, 'room-grace': '500ms', 'room-unused': '2s' } });

// The settings of the room server that this one replaces, two values for each.
const values = {
  autoTransitionEnabled: [true, false],
  realtimeModelVersion: ['v2', 'v3'],
  isTest: [true, false],
  groupId: ['G1', 'G2'],
  externalSttEnabled: [false, true],
  autoResponseEnabled: [true, false],
  vadSettings: [{ threshold: 0.5, silence: { ms: 300 } }, { threshold: 0.25, silence: { ms: 200 } }],
};
const at = (c, id, event) => told(c, id).filter((m) => m.event === event);

scenario('S2.14 S2.15 S2.16 every setter works at the owner and elsewhere: what was written is read at once, and told once everywhere', async (x) => {
  for (const where of [0, 1, 2]) {
    const id = newRoom();
    const { first, guest, member } = await peers(x, { first: 0, guest: 2, member: 1 });
    const host = await peer(x, where, `host-at-${where}`);
    await join(first, id, 'monitor'); // replica 0 is the owner
    await join(host, id, 'host');
    await join(guest, id, 'guest');
    await join(member, id, 'member');
    const all = [first, host, guest, member];
    const now = {};
    let writes = 0;
    for (const round of [0, 1]) for (const [key, of] of Object.entries(values)) {
      now[key] = of[round];
      const ack = await fine(host, 'room-update', { room: id, settings: { [key]: of[round] } });
      const mine = await room(host, id);
      assert.deepEqual(mine.settings, now, 'the writer reads it at once');
      assert.equal(mine.version, ack.version);
      writes++;
      await Promise.all(all.map(async (c) => {
        const push = await hears(c, (m) => m.event === 'room-settings' && m.version === ack.version);
        assert.deepEqual([push.settings, push.changed], [now, { [key]: of[round] }], 'the whole and the change');
        assert.deepEqual((await room(c, id)).settings, now, 'who was told reads the same');
      }));
    }
    const state = { muted: true, cutIn: { at: 1 } };
    await fine(guest, 'guest-update', { room: id, state });
    assert.deepEqual((await room(guest, id)).guestState, state);
    await shows(host, id, (s) => s.guestState.muted);
    await fine(host, 'guest-update', { room: id, state: { cutIn: null } });
    assert.deepEqual((await agree(all, id)).guestState, { muted: true });
    for (const c of all) {
      assert.equal(at(c, id, 'room-settings').length, writes, 'nobody hears a write twice');
      assert.deepEqual(at(c, id, 'guest-state').map((m) => m.guestState), [state, { muted: true }]);
    }
    await fine(host, 'room-close', { room: id });
    for (const c of all) c.close();
  }
});

scenario('S2.14 writers at every replica at once: each ack is in the next read, nothing is lost, all hear the same', async (x) => {
  const id = newRoom();
  const { host, guest, watch } = await peers(x, { host: 0, guest: 1, watch: 2 });
  await join(host, id, 'host');
  await join(guest, id, 'guest');
  await join(watch, id, 'monitor');
  const count = LONG ? 500 : 60;
  const write = (c, event, body, read) => x.loop(async (n) => {
    if (n >= count) { await sleep(20); return { ok: true }; }
    const ack = await ask(c, event, { room: id, ...body(n) });
    if (ack.ok) assert.equal(read(await room(c, id)), n);
    return ack;
  });
  const loops = [
    write(host, 'room-update', (n) => ({ settings: { [`k${n}`]: n, last: n } }), (s) => s.settings.last),
    write(guest, 'guest-update', (n) => ({ state: { n } }), (s) => s.guestState.n),
  ];
  await waitFor('all is written', () => loops.every((l) => l.results.length >= count), 30_000);
  for (const l of loops) noFailure(await l.stop(), count);
  const state = await agree([host, guest, watch], id);
  for (let n = 0; n < count; n++) assert.equal(state.settings[`k${n}`], n);
  for (const c of [guest, watch]) assert.deepEqual(at(c, id, 'room-settings').map((m) => m.changed.last), Array.from({ length: count }, (_, n) => n));
});

scenario('a merge patch removes with null, merges objects, and a write that changes nothing is no event', async (x) => {
  const id = newRoom();
  const { host, guest } = await peers(x, { host: 0, guest: 1 });
  await join(host, id, 'host');
  await join(guest, id, 'guest');
  const first = await fine(host, 'room-update', { room: id, settings: { a: { b: 1, c: 2 }, d: [1, null], e: 'x' } });
  const same = await fine(host, 'room-update', { room: id, settings: { a: { b: 1 }, gone: null } });
  assert.equal(same.version, first.version);
  await fine(host, 'room-update', { room: id, settings: { a: { b: null, f: { g: null, h: 1 } }, d: [2], e: null } });
  const state = await agree([host, guest], id);
  assert.deepEqual(state.settings, { a: { c: 2, f: { h: 1 } }, d: [2] });
  assert.equal(at(guest, id, 'room-settings').length, 2);
});

scenario('expectedVersion: a write applies at that version of the room only, else it is told how things are', async (x) => {
  const id = newRoom();
  const { host, guest } = await peers(x, { host: 0, guest: 1 });
  await join(host, id, 'host');
  const { room: { version } } = await join(guest, id, 'guest');
  const one = await fine(host, 'room-update', { room: id, settings: { n: 1 }, expectedVersion: version });
  const conflict = await refused('CONFLICT', host, 'room-update', { room: id, settings: { n: 2 }, expectedVersion: version });
  assert.deepEqual([conflict.version, conflict.settings], [one.version, { n: 1 }]);
  await fine(host, 'room-update', { room: id, settings: { n: 2 }, expectedVersion: conflict.version });
  const stale = await refused('CONFLICT', guest, 'guest-update', { room: id, state: { g: 1 }, expectedVersion: version });
  assert.deepEqual(stale.guestState, {});
  await fine(guest, 'guest-update', { room: id, state: { g: 1 }, expectedVersion: stale.version });
  // Of those that start from the same version one wins, wherever they are.
  for (let n = 0; n < 10; n++) {
    const { version: from } = await agree([host, guest], id);
    const acks = await Promise.all([
      ask(host, 'room-update', { room: id, settings: { race: n }, expectedVersion: from }),
      ask(guest, 'guest-update', { room: id, state: { race: n }, expectedVersion: from }),
    ]);
    assert.equal(acks.filter((a) => a.ok).length, 1, JSON.stringify(acks));
    const lost = acks.find((a) => !a.ok);
    assert.equal(lost.code, 'CONFLICT');
    assert.equal(lost.version, acks.find((a) => a.ok).version);
  }
});

scenario('S2.17 what is written before the room exists is kept, and its creation overwrites nothing', async (x) => {
  const { host, guest } = await peers(x, { host: 0, guest: 1 });
  for (const [first, second] of [[host, guest], [guest, host]]) {
    const id = newRoom();
    await fine(host, 'room-update', { room: id, settings: { groupId: 'early' } });
    await fine(guest, 'room-update', { room: id, settings: { isTest: true } });
    const ack = await join(first, id, first === host ? 'host' : 'guest');
    assert.deepEqual(ack.room.settings, { groupId: 'early', isTest: true });
    assert.equal((await join(second, id, second === host ? 'host' : 'guest')).room.open, true);
    assert.deepEqual((await agree([host, guest], id)).settings, { groupId: 'early', isTest: true });
  }
  // The two at the same moment.
  for (let n = 0; n < 20; n++) {
    const id = newRoom();
    const [write] = await Promise.all([ask(host, 'room-update', { room: id, settings: { n } }), join(guest, id, 'guest')]);
    // Once somebody is in the room, it is changed from within only.
    assert.ok(write.ok || write.code === 'FORBIDDEN', JSON.stringify(write));
    assert.deepEqual((await room(guest, id)).settings, write.ok ? { n } : {});
    await leave(guest, id);
  }
});

scenario('settings that no room was made of are dropped after --room-unused', async (x) => {
  const id = newRoom();
  const { a, w } = await peers(x, { a: 0, w: 1 });
  await fine(w, 'rooms-watch', {});
  await fine(a, 'room-update', { room: id, settings: { n: 1 } });
  const kept = await hears(w, (m) => m.event === 'rooms-changed' && m.room.id === id);
  assert.deepEqual([kept.room.open, kept.room.peerCount], [false, 0]);
  await waitFor('they are dropped', () => w.heard.filter((m) => m.event === 'rooms-changed' && m.room.id === id).length === 2);
  assert.deepEqual((await join(a, id, 'host')).room.settings, {});
  // S2.5: whoever is named as an owner is one.
  for (const m of w.heard) if (m.room?.owner) assert.ok(m.room.owner.instance && m.room.owner.url, `S2.5 an empty owner: ${JSON.stringify(m)}`);
});

scenario('S2.21 a cluster-wide setting set on one replica reaches everybody on all, once, in one order', async (x) => {
  const all = await Promise.all([0, 1, 2, 0, 1, 2].map((i, n) => peer(x, i, `p${n}`, {}, `${x.user}-${n}`)));
  const key = fresh('ambientNoiseEnabled');
  const changes = (c) => c.heard.filter((m) => m.event === 'settings-changed' && m.key === key);
  const versions = [];
  for (let n = 0; n < 9; n++) {
    const value = [true, false, { level: n }, n, null][n % 5];
    const ack = await fine(all[n % 6], 'settings-set', { key, value });
    versions.push(ack.version);
    const read = await fine(all[n % 6], 'settings-get', { key });
    assert.deepEqual([read.settings, read.version], [value === null ? {} : { [key]: value }, ack.version]);
  }
  for (const c of all) {
    await waitFor('all is told', () => changes(c).length === 9);
    assert.deepEqual(changes(c).map((m) => m.version), versions);
    assert.deepEqual(changes(c).map((m) => m.value), changes(all[0]).map((m) => m.value));
    assert.deepEqual((await fine(c, 'settings-get', { key })).settings, { [key]: 8 });
  }
  versions.reduce((a, b) => { assert.ok(later(b, a)); return b; });
  const same = await fine(all[0], 'settings-set', { key, value: 8 });
  assert.equal(same.version, versions.at(-1), 'nothing to change');
  const everything = await fine(all[1], 'settings-get');
  assert.equal(everything.settings[key], 8);
  assert.deepEqual((await fine(all[1], 'settings-get', { key: 'no such' })).settings, {});

  const stale = await refused('CONFLICT', all[2], 'settings-set', { key, value: 4, expectedVersion: versions[0] });
  assert.deepEqual([stale.version, stale.settings], [versions.at(-1), { [key]: 8 }]);
  const racing = await Promise.all(all.map((c, n) => ask(c, 'settings-set', { key, value: `r${n}`, expectedVersion: stale.version })));
  assert.equal(racing.filter((a) => a.ok).length, 1, JSON.stringify(racing));
  assert.ok(racing.every((a) => a.ok || a.code === 'CONFLICT'));
});

scenario('presence: a user\'s other connections hear of each coming and going once, not of flickers, on every replica', async (x) => {
  const w = await Promise.all([0, 1, 2].map((i) => peer(x, i, `w${i}`)));
  const stranger = await peer(x, 0, 'stranger', {}, `${x.user}-other`);
  const daemon = await x.daemon(1, x.user, { m2: () => 1, m1: () => 1 }, { peer: 'd' });
  const id = newRoom();
  await fine(daemon, 'room-join', { room: id, name: 'Dee' });
  const of = (c) => c.heard.filter((m) => m.event === 'presence' && m.peer === 'd');
  for (const c of w) await waitFor('it has come', () => of(c).length === 1);
  const listed = await waitFor('it is listed whole', async () => {
    const one = (await fine(w[2], 'presence-get', {})).peers.find((p) => p.peer === 'd');
    return one.name && one.methods.length === 2 && one;
  });
  assert.deepEqual({ ...listed, at: 0 }, { peer: 'd', connected: true, at: 0, name: 'Dee', instance: x.cluster.replicas[1].instance, methods: ['m1', 'm2'] });
  assert.ok(Math.abs(listed.at - Date.now()) < 60_000);
  for (let n = 1; n <= 3; n++) {
    drop(daemon);
    await waitFor('it is back', () => daemon.registrations === n + 1);
  }
  vanish(daemon);
  for (const c of w) await waitFor('it is gone', () => of(c).length === 2);
  const again = await peer(x, 0, 'd');
  for (const c of w) {
    await waitFor('it has come again', () => of(c).length === 3);
    assert.deepEqual(of(c).map((m) => m.connected), [true, false, true]);
    assert.deepEqual(of(c), of(w[0]), 'the same everywhere');
    assert.equal(of(c)[1].reason, 'timeout');
    assert.ok(later(of(c)[2].version, of(c)[1].version) && later(of(c)[1].version, of(c)[0].version));
    assert.ok(!c.heard.some((m) => m.event === 'presence' && m.peer === c.peer), 'nobody hears of himself');
  }
  assert.ok(!again.heard.some((m) => m.event === 'presence' && m.peer === 'd'));
  assert.deepEqual(stranger.heard.filter((m) => m.event === 'presence'), [], 'other users hear nothing');
  assert.deepEqual((await fine(stranger, 'presence-get')).peers.map((p) => p.peer), ['stranger']);
});

scenario('S1.24 S2.11 a takeover is no going: presence shows the peer connected at every moment', async (x) => {
  const { w } = await peers(x, { w: 0 });
  let now = await peer(x, 1, 'a');
  const reads = x.loop(async () => {
    const a = await ask(w, 'presence-get', {});
    const one = a.peers?.find((p) => p.peer === 'a');
    return { ok: one?.connected === true && !one.away, code: 'SHOWN', error: JSON.stringify(one) };
  });
  await hears(w, 'presence');
  await waitFor('it is read', () => reads.results.length > 5);
  const from = reads.results.length;
  for (let n = 0; n < 10; n++) {
    const next = await peer(x, n % 3, 'a');
    await waitFor('the former is ended', () => !now.connected, 3000);
    now.close();
    now = next;
  }
  await sleep(peerGrace + 500);
  noFailure((await reads.stop()).slice(from), 20);
  assert.deepEqual(w.heard.filter((m) => m.event === 'presence').map((m) => m.connected), [true]);
});
